#!/usr/bin/env python3
"""The program of a node's ranks is replaced in mid-stream, in a cluster over loopback: by good ones, one node after another and both at
once, by ones that cannot do it, and while the node is killed; a node that was cut off comes back with the program that it had changed to.
Every stream must be the one of an undisturbed server. Prints the pauses.

usage: node_upgrade.py TROUPE MODEL
"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from cluster import Cluster, Node
from server import Server, children_of
from upgrade import ask_all, file_of, id_of, replace, write_program


def start_upgrade(program, node, *flags):
    words = [program, "node", "--upgrade", "--pid", str(node.process.pid), *flags]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def outcome(command):
    text, _ = command.communicate(timeout=120)
    return command.returncode, text


def in_mid_stream(server, expected, act):
    """What `act` says, done while all streams run, and the longest silence of one."""
    seen = []
    texts, silence = ask_all(server, lambda: seen.append(act()))
    assert texts == expected, (texts, expected, server.text()[-3000:])
    return seen[0], silence


def pause_in(text):
    return max(int(ms) for ms in re.findall(r"after a pause of (\d+) ms", text)) / 1000


def check_good(server, expected, program, paths):
    a, b = server.nodes
    for node, path in ((a, paths[0]), (b, paths[1])):
        others = {pid for other in server.nodes if other is not node for pid in children_of(other.process.pid)}
        assert others, "the group spans both"
        replace(path, program)
        (code, text), silence = in_mid_stream(server, expected, lambda: outcome(start_upgrade(program, node)))
        assert code == 0, (text, server.text()[-2000:])
        ranks = children_of(node.process.pid)
        assert ranks and all(file_of(pid) == id_of(path) for pid in ranks), "not the new file"
        print(f"node upgraded: pause {pause_in(text):.3f} s, longest silence of a stream {silence:.3f} s")
    for path in paths:
        replace(path, program)

    def both():
        commands = [start_upgrade(program, node) for node in server.nodes]
        return [outcome(command) for command in commands]

    results, silence = in_mid_stream(server, expected, both)
    assert all(code == 0 for code, _ in results), results
    for node, path in zip(server.nodes, paths):
        assert all(file_of(pid) == id_of(path) for pid in children_of(node.process.pid))
    print(f"both at once: pauses {', '.join(f'{pause_in(text):.3f}' for _, text in results)} s, longest silence {silence:.3f} s")
    assert server.metric("troupe_device_restarts_total") == 0, "a change is no restart"


def check_bad(server, expected, program, folder):
    a = server.nodes[0]
    asks = f'case $* in worker-protocol) exec {program} "$@";; esac; '
    for bad, part, touched in (
        (write_program(folder / "crashes", asks + "exit 1"), "exit code 1", True),
        ("/bin/false", "no troupe program", False),
        (write_program(folder / "older", "echo troupe-worker 0-0 0.0.1"), "speaks protocol 0-0", False),
    ):
        before = {node: children_of(node.process.pid) for node in server.nodes}
        files = {node: {file_of(pid) for pid in pids} for node, pids in before.items()}
        (code, text), _ = in_mid_stream(server, expected, lambda: outcome(start_upgrade(program, a, "--program", bad)))
        assert code == 1 and part in text, (bad, code, text)
        assert not touched or "run the program of before" in text, text
        for node in server.nodes:
            ranks = children_of(node.process.pid)
            assert {file_of(pid) for pid in ranks} == files[node], "not the program of before"
            assert touched or ranks == before[node], "a refused program must not disturb anybody"
    assert server.metric("troupe_device_restarts_total") == 0
    print("bad programs refused or undone: ok")


def check_return(server, expected):
    """A node that is frozen until it is missed joins again, and its ranks run what they ran."""
    b = server.nodes[1]
    files = {file_of(pid) for pid in children_of(b.process.pid)}
    lost, joined = len(server.text()), len(b.text())
    b.process.send_signal(signal.SIGSTOP)
    server.wait_text("node b lost", since=lost)
    b.process.send_signal(signal.SIGCONT)
    b.wait_for("joined as b", since=joined)
    texts, _ = ask_all(server)
    assert texts == expected, (texts, expected)
    assert {file_of(pid) for pid in children_of(b.process.pid)} == files, "not the program that it changed to"
    assert files != {file_of(b.process.pid)}, "it never ran another than its own"
    print("back with the program that it changed to: ok")


def check_words(server, program):
    def said(*words):
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    code, text = said("node", "--upgrade")
    assert code == 1 and "several nodes" in text and str(server.nodes[0].process.pid) in text, text
    code, text = said("upgrade", "--pid", str(server.process.pid))
    assert code == 1 and "runs no ranks itself" in text, text
    code, text = said("node", "--upgrade", "--pid", str(os.getpid()))
    assert code == 1 and "no troupe server or node" in text, text
    code, text = said("node", "--upgrade", "--join", "127.0.0.1:1")
    assert code != 0 and "--join" in text, text
    print("what cannot be asked is refused: ok")


def check_lost(server, expected, program, folder):
    """The node is killed while its ranks of the new program start."""
    a = server.nodes[0]
    hangs = write_program(folder / "sleeps", f'case $* in worker-protocol) exec {program} "$@";; esac; exec sleep 100')

    def act():
        said = len(server.text())
        command = start_upgrade(program, a, "--program", hangs)
        server.wait_text("node a: its ranks are to run another program", since=said)
        time.sleep(0.5)
        a.process.send_signal(signal.SIGKILL)
        a.process.wait()
        server.nodes.append(Node(program, server.address(), name="c"))
        return outcome(command)

    (code, text), _ = in_mid_stream(server, expected, act)
    assert code == 1 and "ended" in text, text
    print("a node killed while it upgrades: ok")


def main():
    program, model = os.path.abspath(sys.argv[1]), sys.argv[2]
    with Server(program, model, "--device", "cpu", "--max-model-len", "1024") as server:
        expected, _ = ask_all(server)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        paths = [folder / "troupe-a", folder / "troupe-b"]
        for path in paths:
            replace(path, program)

        def two(address):
            return [Node(str(path), address, name=name) for name, path in zip("ab", paths)]

        with Cluster(program, model, "--pp", "2", "--slots", "0", "--max-model-len", "1024", "--keep-weights", start_nodes=two) as server:
            check_good(server, expected, program, paths)
            check_bad(server, expected, program, folder)
            check_return(server, expected)
            check_words(server, program)
            check_lost(server, expected, program, folder)
            assert server.metric("troupe_requests_total", 'outcome="failed"') == 0


if __name__ == "__main__":
    main()
