#!/usr/bin/env python3
"""Processes that stand by for ranks: each is called when its rank is killed, texts stay those of an undisturbed run, others stand by in their
place, and after a crash none of them is called.

usage: standby.py TROUPE MODEL
"""
import os
import pathlib
import signal
import sys
import time

from load import CASES, Load
from server import Server, wait_until


def ask(server, strike=None):
    """What a stream says; `strike` comes in its midst."""
    stream = Load(server, 96, CASES[:1]).start()
    if strike:
        stream.in_midst()
        strike()
    stream.join()
    assert not stream.errors, (stream.errors, server.text()[-3000:])
    return stream.tokens


def standbys(server, count, seconds=20):
    """Process ids of the standbys, once there are so many and they have nothing left to do."""
    found = []

    def all_there():
        found[:] = server.children("standby")
        return len(found) == count

    wait_until(all_there, lambda: f"{found} stand by, not {count}\n{server.text()}", seconds)
    time.sleep(0.5)
    return sorted(found)


def main():
    program, model = sys.argv[1:3]
    flags = ["--device", "cpu", "--tp", "2", "--isolate-devices", "--keep-weights", "--max-model-len", "1024", "--max-device-restarts", "1000"]
    with Server(program, model, *flags) as server:  # on a CPU they must be asked for
        expected = ask(server)
        time.sleep(1.5)
        assert not server.children("standby") and len(server.children()) == 2
        words = pathlib.Path(f"/proc/{server.children()[0]}/cmdline").read_text().split("\0")
        assert "--keep-weights" in words and not {"--keep-kv", "--no-keep-kv"} & set(words), "what was not said is the device's to decide"
    with Server(program, model, *flags, "--standby") as server:
        assert ask(server) == expected
        for rank in (0, 1):
            called = standbys(server, 2)
            assert ask(server, lambda: os.kill(sorted(server.children())[rank], signal.SIGKILL)) == expected
            assert sorted(server.children()) == called, (server.children(), called)
        left = standbys(server, 2)
        os.kill(left[0], signal.SIGKILL)  # nobody's loss
        assert ask(server) == expected
        assert server.text().count("device lost") == 2, server.text()
        crashed = server.children()
        assert ask(server, lambda: os.kill(crashed[0], signal.SIGSEGV)) == expected
        assert not set(server.children()) & {*left, *crashed}, "after a crash nothing is trusted that was there before"
        standbys(server, 2)
        assert server.metric("troupe_group_restarts_total") == 3
    print("standbys are called")


if __name__ == "__main__":
    main()
