#!/usr/bin/env python3
"""A cluster on one machine: `troupe serve` as the head and `troupe node` processes beside it, all over loopback.

Joins, joins late, drains, is killed and frozen under load: no request is lost, and every text equals that of one undisturbed device group.
Who does not fit is refused with a sentence.

usage: nodes.py TROUPE MODEL
"""
import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import time

from cluster import Cluster, Node
from load import Load, undisturbed

OTHER = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "models" / "llama3-gqa.gguf"


def join_late_drain_kill_freeze(program, model, shape, expected):
    """A slot at the head and two nodes of one slot each: TP 3 across them. A third is the spare."""
    def two(address):
        return [Node(program, address, name=name) for name in ("a", "b")]

    with Cluster(program, model, *shape, "--max-device-restarts", "1000", start_nodes=two) as server:
        a, b = server.nodes
        Load(server).start().expect(expected)
        assert server.metric("troupe_nodes") == 2 and server.metric("troupe_node_ranks", 'node="a"') == 1

        load = Load(server).start().in_midst()
        c = Node(program, server.address(), name="c")
        server.nodes.append(c)
        c.wait_for("joined as c")
        load.expect(expected)
        print("joined late: ok")

        load = Load(server).start().in_midst()
        assert a.stop() == 0, a.text()
        load.expect(expected)
        assert "left the cluster" in a.text(), a.text()
        assert server.metric("troupe_node_up", 'node="a"') == 0 and server.metric("troupe_nodes") == 2
        print("drained under load, on to the spare: ok")

        a = Node(program, server.address(), name="a")
        server.nodes.append(a)
        a.wait_for("joined as a")
        load, seen = Load(server).start().in_midst(), len(server.text())
        struck = time.monotonic()
        b.stop(signal.SIGKILL)
        noticed = server.wait_text("device lost", since=seen) - struck
        load.expect(expected)
        assert noticed < 2, f"noticed after {noticed} s"
        print(f"killed: noticed after {noticed:.2f} s: ok")

        load, seen = Load(server).start().in_midst(), len(server.text())
        struck = time.monotonic()
        c.process.send_signal(signal.SIGSTOP)
        noticed = server.wait_text("device lost", since=seen) - struck
        d = Node(program, server.address(), name="d")
        server.nodes.append(d)
        load.expect(expected)
        assert noticed < 2, f"noticed after {noticed} s"
        seen = len(c.text())
        c.process.send_signal(signal.SIGCONT)
        c.wait_for("joined as c", since=seen)
        Load(server).start().expect(expected)
        print(f"frozen: noticed after {noticed:.2f} s, and joined again: ok")

        # Both machines of the group go at once: it waits for two others.
        load = Load(server).start().in_midst()
        for node in server.nodes:
            if node.process.poll() is None:
                node.stop(signal.SIGKILL)
        server.wait_text("waits for slots", since=len(server.text()) - 200)
        server.nodes += [Node(program, server.address(), name=name) for name in ("e", "f")]
        load.expect(expected)
        print("all nodes killed, and others came: ok")


def last_node_leaves(program, model, expected):
    """No other slot and no other replica: the group stays as long as the node may wait, then its requests wait for the next node."""
    def one(address):
        return [Node(program, address, "--drain-timeout", "1", name="a")]

    server = Cluster(program, model, "--slots", "0", start_nodes=one)
    server.wait_text("waits for slots")
    server.url = re.search(r"listening on (http://\S+)", server.text()).group(1)
    status, said = server.get("/readyz")
    assert status == 503 and "the model waits for slots: its group takes 1, " in said, (status, said)
    with server:
        load = Load(server).start().in_midst()
        assert server.nodes[0].stop() == 0
        assert "leaving all the same" in server.nodes[0].text()
        server.nodes.append(Node(program, server.address(), name="b"))
        load.expect(expected)
    print("the last node leaves: ok")


def replica_moves(program, model, expected):
    """Two replicas, one on each node; one node drains, and there is no room for its replica: its requests go on at the other."""
    def two(address):
        return [Node(program, address, name=name) for name in ("a", "b")]

    with Cluster(program, model, "--dp", "2", "--slots", "0", start_nodes=two) as server:
        load = Load(server).start().in_midst()
        assert server.nodes[0].stop(seconds=30) == 0, server.nodes[0].text()
        load.expect(expected)
        assert "left the cluster" in server.nodes[0].text(), server.nodes[0].text()
    print("a replica's requests move: ok")


def with_a_draft_model(program, model, expected):
    """TP 2 over the head and a node: the leader, wherever it is, has the draft model, whose path may be another one on each machine."""
    draft = ["--speculative-method", "draft", "--speculative-draft-model", os.path.relpath(model)]
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "draft.gguf"
        copy.symlink_to(os.path.realpath(model))
        absent = pathlib.Path(folder) / "absent.gguf"

        def node(address, *flags, name):
            return Node(program, address, *flags, name=name, folder=folder)  # where the head's words lead nowhere

        def one(address):
            return [node(address, "--speculative-draft-model", str(copy), name="a")]

        with Cluster(program, model, "--tp", "2", *draft, start_nodes=one) as server:
            Load(server).start().expect(expected)
            for flags, said in [
                (("--speculative-draft-model", str(absent)), "--speculative-draft-model: Path does not exist"),
                (("--speculative-draft-model", str(OTHER)), f"with the draft model {OTHER} "),
            ]:
                refused = node(server.address(), *flags, name="b")
                assert refused.process.wait(30) != 0 and said in refused.text(), refused.text()
            server.nodes.append(node(server.address(), name="c"))  # at the head's path
            server.nodes[-1].wait_for("joined as c")
            load = Load(server).start().in_midst()
            server.nodes[0].stop(signal.SIGKILL)
            load.expect(expected)
            accepted = server.metric("troupe_spec_accepted_tokens_total")
            assert accepted > 0
    print(f"with a draft model, {accepted:.0f} drafts accepted: ok")


def refusals(program, model):
    with tempfile.TemporaryDirectory() as folder:
        other = pathlib.Path(folder) / "other"
        other.mkdir()
        (other / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
        with Cluster(program, model) as server:
            for what, node, said in [
                ("token", Node(program, server.address(), token="another token altogether"), "the token is not this cluster's"),
                ("no token", Node(program, server.address(), token=None), "a cluster needs a token"),
                ("name", Node(program, server.address(), name="head"), "a node's name"),
                ("model", Node(program, server.address(), "--model", str(other), name="m"), "other"),
                ("slots", Node(program, server.address(), "--slots", "0", name="s"), "--slots 0"),
                ("interface", Node(program, server.address(), "--interface", "nosuch0", name="i"), "nosuch0"),
            ]:
                code = node.process.wait(30)
                assert code == 1 and said in node.text(), (what, code, node.text())
            assert server.metric("troupe_node_refusals_total") >= 2
            assert server.get("/readyz")[0] == 200
    print("refusals: ok")


def main():
    program, model = sys.argv[1:3]
    alone = ["--device", "cpu"]
    expected = undisturbed(program, model, *alone)
    refusals(program, model)
    last_node_leaves(program, model, expected)
    replica_moves(program, model, expected)
    with_a_draft_model(program, model, undisturbed(program, model, *alone, "--tp", "2"))
    join_late_drain_kill_freeze(program, model, ["--tp", "3"], undisturbed(program, model, *alone, "--tp", "3"))
    join_late_drain_kill_freeze(program, model, ["--pp", "2", "--slots", "0"], expected)


if __name__ == "__main__":
    main()
