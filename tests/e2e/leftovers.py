#!/usr/bin/env python3
"""Counts what a head, its nodes, a server and its keeper hold (files, threads, child processes) while nodes come and go and ranks are
killed: it must not grow, and when all have ended no process is left.

usage: leftovers.py TROUPE MODEL [ROUNDS]
"""
import collections
import os
import pathlib
import re
import signal
import socket
import sys
import tempfile
import time

from cluster import Cluster, Node
from server import Server, all_children_of, wait_until
from upgrade import upgrade, write_program

WARM_UP = 3  # rounds after which everything that is made once is there
MARK = f"TROUPE_TEST_LEFTOVERS={os.getpid()}"  # in the environment of every process that is started here
REQUEST = {"prompt": "The history of the lighthouse begins", "temperature": 0, "max_tokens": 4}


def descendants():
    """Processes that were started from here, whoever their parent is by now."""
    found = []
    for process in pathlib.Path("/proc").iterdir():
        try:
            if process.name.isdigit() and int(process.name) != os.getpid() and MARK.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process.name, (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]))
        except OSError:
            pass
    return found


def kinds_of_files(pid):
    kinds = collections.Counter()
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            kinds[re.sub(r"[0-9]+", "N", os.readlink(link))] += 1
        except OSError:
            pass
    return kinds


class Holdings:
    """What a process has now, and that it comes back to no more than that."""

    def __init__(self, name, pid):
        self.name, self.pid, self.before = name, pid, None

    def now(self):
        threads = len(list(pathlib.Path(f"/proc/{self.pid}/task").iterdir()))
        return {"files": sum(kinds_of_files(self.pid).values()), "threads": threads, "children": len(all_children_of(self.pid))}

    def settle(self):
        """The least of two seconds: connections take a moment to close."""
        least = self.now()
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            least = {key: min(value, least[key]) for key, value in self.now().items()}
            time.sleep(0.05)
        return least

    def mark(self):
        self.before = self.settle()
        self.kinds = kinds_of_files(self.pid)

    def expect_no_more(self, what):

        def no_more():
            return all(value <= self.before[key] for key, value in self.now().items())

        def said():
            more = kinds_of_files(self.pid) - self.kinds
            return f"{what}: {self.name} had {self.before}, now {self.now()}, more of {dict(more)}"

        wait_until(no_more, said, 10)  # a handshake or a linger may take its time
        print(f"{what}: {self.name} had {self.before}, has {self.now()}")


def over_rounds(what, rounds, holders, act):
    """`holders` is a function: who is watched may be known only when the first rounds are over."""
    for number in range(WARM_UP + rounds):
        if number == WARM_UP:
            watched = holders()
            for one in watched:
                one.mark()
        act(number)
    for one in watched:
        one.expect_no_more(f"{what}, {rounds} times")


def nodes_come_and_go(program, model, rounds):
    """The group stays at the head; a node without ranks leaves, or is killed."""
    with Cluster(program, model) as server:

        def act(number):
            node = Node(program, server.address(), name="a")
            node.wait_for("joined as a")
            node.stop(signal.SIGKILL if number % 2 else signal.SIGTERM)
            server.wait_metric("troupe_nodes", 0)

        over_rounds("a node came and went", rounds, lambda: [Holdings("head", server.process.pid)], act)
        assert server.post("/v1/completions", REQUEST)[0] == 200


def ranks_are_killed(program, model, rounds):
    with Cluster(program, model, "--slots", "0", "--max-device-restarts", "100000", start_nodes=lambda at: [Node(program, at, name="a")]) as server:
        node = server.nodes[0]

        def act(_):
            (rank,) = all_children_of(node.process.pid)
            seen = len(server.text())
            os.kill(rank, signal.SIGKILL)
            server.wait_text("up again", since=seen)
            server.wait_metric("troupe_group_up", 1, seconds=60)
            assert server.post("/v1/completions", REQUEST)[0] == 200

        over_rounds("a node's rank was killed", rounds, lambda: [Holdings("head", server.process.pid), Holdings("node", node.process.pid)], act)


def workers_are_killed(program, model, rounds):
    """Without a cluster, with a keeper that holds weights and KV."""
    flags = ["--device", "cpu", "--isolate-devices", "--keep-weights", "--keep-kv", "--max-device-restarts", "100000"]
    with Server(program, model, *flags) as server:
        (keeper,) = server.children("keeper")

        def act(_):
            (worker,) = server.children("worker")
            seen = len(server.text())
            os.kill(worker, signal.SIGKILL)
            server.wait_text("up again", since=seen)
            assert server.post("/v1/completions", REQUEST)[0] == 200

        over_rounds("a worker was killed", rounds, lambda: [Holdings("server", server.process.pid), Holdings("keeper", keeper)], act)


def programs_are_tried(program, model, rounds):
    """A program that does not start, and every third time one that runs: the files of those that nobody runs are closed."""
    with tempfile.TemporaryDirectory() as folder, Server(program, model, "--device", "cpu", "--isolate-devices") as server:
        bad = write_program(pathlib.Path(folder) / "bad", f'case $* in *worker-protocol) exec {program} "$@";; esac\nexit 9')

        def act(number):
            code, text = upgrade(program, server, *([] if number % 3 == 0 else ["--program", bad]))
            assert code == (0 if number % 3 == 0 else 1), text

        over_rounds("a program was tried", rounds, lambda: [Holdings("server", server.process.pid)], act)


def nodes_are_frozen(program, model, rounds):
    """A node is lost with its rank, and comes back: it ends what it has and joins anew."""
    with Cluster(program, model, "--slots", "0", "--max-device-restarts", "100000", start_nodes=lambda at: [Node(program, at, name="a")]) as server:
        node = server.nodes[0]

        def act(_):
            seen, joined = len(server.text()), len(node.text())
            node.process.send_signal(signal.SIGSTOP)
            server.wait_text("node a lost", since=seen)
            node.process.send_signal(signal.SIGCONT)
            node.wait_for("joined as a", since=joined)
            server.wait_metric("troupe_group_up", 1, seconds=60)
            assert server.post("/v1/completions", REQUEST)[0] == 200

        over_rounds("a node was frozen", rounds, lambda: [Holdings("head", server.process.pid), Holdings("node", node.process.pid)], act)


def strangers_call(program, model, rounds):
    """Refused nodes, and connections that say nothing or nonsense."""
    with Cluster(program, model) as server:
        host, port = server.address().rsplit(":", 1)

        def act(number):
            for said in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 2000):
                with socket.create_connection((host, int(port))) as stranger:
                    stranger.sendall(said)
            if number % 10 == 0:
                refused = Node(program, server.address(), name="x", token="another token altogether")
                assert refused.process.wait(60) == 1, refused.text()

        over_rounds("strangers called", rounds, lambda: [Holdings("head", server.process.pid)], act)


def main():
    program, model = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 10
    os.environ.update([MARK.split("=")])
    strangers_call(program, model, rounds)
    nodes_come_and_go(program, model, rounds)
    ranks_are_killed(program, model, rounds)
    workers_are_killed(program, model, rounds)
    programs_are_tried(program, model, max(3, rounds // 3))
    nodes_are_frozen(program, model, max(1, rounds // 5))
    wait_until(lambda: not descendants(), lambda: f"processes are left: {descendants()}", 10)


if __name__ == "__main__":
    main()
