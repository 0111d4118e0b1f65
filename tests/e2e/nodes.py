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
import subprocess
import sys
import tempfile
import threading
import time

from server import Server

TOKEN = "a token that only this test knows"
CASES = [
    {"prompt": "The history of the lighthouse begins", "temperature": 0},
    {"prompt": "Once upon a time", "temperature": 0.9, "seed": 7},
    {"prompt": "def fibonacci(n):", "temperature": 1.2, "seed": 99, "top_p": 0.9},
    {"prompt": "List of colours: red, green,", "temperature": 0, "repetition_penalty": 1.2},
]


class Node:
    """A `troupe node` process; `prefix` is a command that it is run by."""

    def __init__(self, program, head, *flags, name=None, token=TOKEN, prefix=()):
        self.log = tempfile.NamedTemporaryFile(mode="w+", suffix=".log")
        words = [*prefix, program, "node", "--join", head, "--device", "cpu", *flags]
        if name:
            words += ["--name", name]
        environment = {name: text for name, text in os.environ.items() if name != "TROUPE_CLUSTER_TOKEN"}
        if token:
            environment["TROUPE_CLUSTER_TOKEN"] = token
        self.process = subprocess.Popen(words, stderr=self.log, stdout=self.log, env=environment)

    def text(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def wait_for(self, pattern, seconds=60, since=0):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if re.search(pattern, self.text()[since:]):
                return
            time.sleep(0.01)
        raise AssertionError(f"no {pattern!r} within {seconds} s in\n{self.text()}")

    def stop(self, number=signal.SIGTERM, seconds=60):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()


class Cluster(Server):
    """A head that is ready as soon as enough nodes have come, which the caller starts in `with_nodes`."""

    def __init__(self, program, model, *flags, listen="127.0.0.1:0", prefix=(), start_nodes=lambda address: []):
        os.environ["TROUPE_CLUSTER_TOKEN"] = TOKEN
        super().__init__(program, model, "--device", "cpu", "--cluster-listen", listen, *flags)
        self.nodes = []
        self.start_nodes = start_nodes

    def address(self, seconds=60):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = re.search(r"nodes join at (\S+)", self.text())
            if found:
                return found.group(1)
            time.sleep(0.02)
        raise AssertionError("the head opened no port:\n" + self.text())

    def __enter__(self):
        self.nodes = self.start_nodes(self.address())
        return super().__enter__()

    def __exit__(self, kind, value, trace):
        try:
            super().__exit__(kind, value, trace)
        finally:
            for node in self.nodes:
                if kind is not None:
                    print(node.text()[-2000:])
                node.close()

    def wait_text(self, pattern, seconds=60, since=0):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if re.search(pattern, self.text()[since:]):
                return
            time.sleep(0.01)
        raise AssertionError(f"no {pattern!r} within {seconds} s in\n{self.text()}")


class Load:
    """All cases as streams at once."""

    def __init__(self, server, max_tokens=64):
        self.server, self.max_tokens = server, max_tokens
        self.texts, self.errors = [None] * len(CASES), []
        self.events = 0
        self.begun = threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(i,)) for i in range(len(CASES))]

    def ask(self, i):
        text = []

        def on_event(_):
            self.events += 1
            if self.events > 4 * len(CASES):
                self.begun.set()
            return False

        try:
            body = {**CASES[i], "max_tokens": self.max_tokens, "ignore_eos": True}
            for event in self.server.stream("/v1/completions", body, on_event):
                text += [choice["text"] for choice in event["choices"]]
        except (AssertionError, OSError) as failure:
            self.errors.append(repr(failure))
        self.texts[i] = "".join(text)

    def start(self):
        for thread in self.threads:
            thread.start()
        return self

    def in_midst(self):
        assert self.begun.wait(120), "no tokens\n" + self.server.text()
        return self

    def expect(self, texts):
        for thread in self.threads:
            thread.join(180)
        assert not self.errors, (self.errors, self.server.text()[-3000:])
        for said, right in zip(self.texts, texts):
            assert said == right, f"{said!r}\nis not\n{right!r}\n{self.server.text()[-3000:]}"


def undisturbed(program, model, *shape):
    with Server(program, model, "--device", "cpu", *shape) as server:
        load = Load(server).start()
        for thread in load.threads:
            thread.join(120)
        assert not load.errors, load.errors
        return load.texts


def join_late_drain_kill_freeze(program, model, shape, texts):
    """A slot at the head and two nodes of one slot each: TP 3 across them. A third is the spare."""
    def two(address):
        return [Node(program, address, name=name) for name in ("a", "b")]

    with Cluster(program, model, *shape, "--max-device-restarts", "1000", start_nodes=two) as server:
        a, b = server.nodes
        Load(server).start().expect(texts)
        assert server.metric("troupe_nodes") == 2 and server.metric("troupe_node_ranks", 'node="a"') == 1

        load = Load(server).start().in_midst()
        c = Node(program, server.address(), name="c")
        server.nodes.append(c)
        c.wait_for("joined as c")
        load.expect(texts)
        print("joined late: ok")

        load = Load(server).start().in_midst()
        assert a.stop() == 0, a.text()
        load.expect(texts)
        assert "left the cluster" in a.text(), a.text()
        assert server.metric("troupe_node_up", 'node="a"') == 0 and server.metric("troupe_nodes") == 2
        print("drained under load, on to the spare: ok")

        a = Node(program, server.address(), name="a")
        server.nodes.append(a)
        a.wait_for("joined as a")
        load, seen = Load(server).start().in_midst(), len(server.text())
        struck = time.monotonic()
        b.stop(signal.SIGKILL)
        server.wait_text("device lost", since=seen)
        noticed = time.monotonic() - struck
        load.expect(texts)
        assert noticed < 2, f"noticed after {noticed} s"
        print(f"killed: noticed after {noticed:.2f} s: ok")

        load, seen = Load(server).start().in_midst(), len(server.text())
        struck = time.monotonic()
        c.process.send_signal(signal.SIGSTOP)
        server.wait_text("device lost", since=seen)
        noticed = time.monotonic() - struck
        d = Node(program, server.address(), name="d")
        server.nodes.append(d)
        load.expect(texts)
        assert noticed < 2, f"noticed after {noticed} s"
        seen = len(c.text())
        c.process.send_signal(signal.SIGCONT)
        c.wait_for("joined as c", since=seen)
        Load(server).start().expect(texts)
        print(f"frozen: noticed after {noticed:.2f} s, and joined again: ok")

        # Both machines of the group go at once: it waits for two others.
        load = Load(server).start().in_midst()
        for node in server.nodes:
            if node.process.poll() is None:
                node.stop(signal.SIGKILL)
        server.wait_text("waits for slots", since=len(server.text()) - 200)
        server.nodes += [Node(program, server.address(), name=name) for name in ("e", "f")]
        load.expect(texts)
        print("all nodes killed, and others came: ok")


def last_node_leaves(program, model, texts):
    """No other slot and no other replica: the group stays as long as the node may wait, then its requests wait for the next node."""
    def one(address):
        return [Node(program, address, "--drain-timeout", "1", name="a")]

    with Cluster(program, model, "--slots", "0", start_nodes=one) as server:
        load = Load(server).start().in_midst()
        assert server.nodes[0].stop() == 0
        assert "leaving all the same" in server.nodes[0].text()
        server.nodes.append(Node(program, server.address(), name="b"))
        load.expect(texts)
    print("the last node leaves: ok")


def replica_moves(program, model, texts):
    """Two replicas, one on each node; one node drains, and there is no room for its replica: its requests go on at the other."""
    def two(address):
        return [Node(program, address, name=name) for name in ("a", "b")]

    with Cluster(program, model, "--dp", "2", "--slots", "0", start_nodes=two) as server:
        load = Load(server).start().in_midst()
        assert server.nodes[0].stop(seconds=30) == 0, server.nodes[0].text()
        load.expect(texts)
        assert "left the cluster" in server.nodes[0].text(), server.nodes[0].text()
    print("a replica's requests move: ok")


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
    texts = undisturbed(program, model)
    refusals(program, model)
    last_node_leaves(program, model, texts)
    replica_moves(program, model, texts)
    join_late_drain_kill_freeze(program, model, ["--tp", "3"], undisturbed(program, model, "--tp", "3"))
    join_late_drain_kill_freeze(program, model, ["--pp", "2", "--slots", "0"], texts)


if __name__ == "__main__":
    main()
