#!/usr/bin/env python3
"""Kills and freezes device processes in mid-stream, alone, in groups and in replicas: greedy and seeded outputs must be those of an
undisturbed run, and nothing may be lost. Killed too often, the service gives up: it is not ready, every request gets an error, and the process
exits with code 1.

usage: recovery.py TROUPE MODEL [-- FLAGS OF SERVE]        (with flags, one device, or one group of them, on its own alone)
"""
import os
import signal
import sys
import threading
import time

from server import Server, split_flags, wait_until

CASES = [
    {"prompt": "The history of the lighthouse begins", "temperature": 0},
    {"prompt": "Once upon a time", "temperature": 0.9, "seed": 7},
    {"prompt": "def fibonacci(n):", "temperature": 1.2, "seed": 99, "top_p": 0.9},
    {"prompt": "List of colours: red, green,", "temperature": 0, "repetition_penalty": 1.2},
    {"prompt": "The three laws are", "temperature": 0.7, "seed": 3, "frequency_penalty": 0.5, "n": 2},
]


def ask_all(server, on_first=None):
    texts = [None] * len(CASES)

    def ask(i):
        first = on_first if i == 0 else None
        seen = 0

        def on_event(_):
            nonlocal seen
            seen += 1
            if first and seen == 5:
                first()
            return False

        events = server.stream("/v1/completions", {**CASES[i], "max_tokens": 48, "ignore_eos": True}, on_event)
        joined = {}
        for event in events:
            for choice in event["choices"]:
                joined[choice["index"]] = joined.get(choice["index"], "") + choice["text"]
        texts[i] = joined

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(CASES))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return texts


def strike_one(server, expected, name, rank):
    """One process of the group is struck in mid-stream; the group it belongs to must have new processes throughout, the others the old ones."""
    before = server.children()
    victim = before[rank]
    start, seen = time.monotonic(), len(server.text())
    texts = ask_all(server, lambda: os.kill(victim, getattr(signal, name)))
    assert texts == expected, (name, texts, expected)
    took = time.monotonic() - start
    server.wait_text("up again", since=seen)  # the texts may have ended before, on another replica
    after = server.children()
    assert len(after) == len(before) and victim not in after, (before, after)
    print(f"{name} of one of {len(before)}: {len(CASES)} requests ended with the undisturbed text, {took:.1f} s in all")
    return before, after


def alone(program, model, flags=()):
    with Server(program, model, "--isolate-devices", "--max-model-len", "1024", *flags) as server:
        expected = ask_all(server)
        assert all(expected), expected
        for name in ("SIGKILL", "SIGSEGV"):
            strike_one(server, expected, name, 0)
        assert server.metric("troupe_device_restarts_total") == 2
        server.wait_idle()
        children = server.children()
    wait_until(lambda: not [c for c in children if os.path.exists(f"/proc/{c}")], lambda: "a device process outlived its parent", 5)


def in_groups(program, model, flags, ranks, replicas):
    with Server(program, model, "--isolate-devices", "--max-model-len", "1024", *flags) as server:
        assert len(server.children()) == ranks * replicas
        expected = ask_all(server)
        for number, name in enumerate(("SIGKILL", "SIGSTOP")):
            before, after = strike_one(server, expected, name, ranks - 1 - number)
            assert len(set(before) & set(after)) == ranks * (replicas - 1), "the struck group alone gets new processes"
        assert server.metric("troupe_group_restarts_total") == 2
        server.wait_metric("troupe_group_up", replicas)
        assert server.metric("troupe_requests_total", 'outcome="failed"') == 0
        server.wait_idle()


def given_up(program, model):
    server = Server(program, model, "--isolate-devices", "--max-device-restarts", "2").__enter__()
    try:
        lose_until_given_up(server)
    finally:
        server.process.kill()


def lose_until_given_up(server):
    answers, ready = [None] * 3, []

    def ask(i):
        try:
            answers[i] = server.stream("/v1/completions", {"prompt": "One, two,", "max_tokens": 2000, "ignore_eos": True})
        except AssertionError as failure:
            answers[i] = str(failure)

    def look():
        while server.process.poll() is None:
            try:
                ready.append(server.get("/readyz")[0])
            except OSError:  # it has gone
                return
            time.sleep(0.005)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(answers))] + [threading.Thread(target=look)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    for number in range(3):
        said = len(server.text())
        os.kill(server.children()[0], signal.SIGKILL)
        server.wait_text("up again" if number < 2 else "given up: the device was lost too often", since=said)
    code = server.process.wait(30)
    for thread in threads:
        thread.join()
    assert code == 1, f"exit code {code}\n{server.text()}"
    assert all("cannot be served any more" in answer for answer in answers), answers
    # Between giving up and the end of the process are 0.2 s at most, so that it says 503 cannot be counted on; that it stays ready till then can.
    assert ready[0] == 200 and ready == sorted(ready), ready
    print(f"given up after the third loss: every request got an error, /readyz said {ready[-1]} last, exit code 1")


def main():
    _, flags = split_flags(sys.argv)
    alone(*sys.argv[1:3], flags)
    if flags:
        return
    given_up(*sys.argv[1:3])
    in_groups(*sys.argv[1:3], ["--tp", "3"], 3, 1)
    in_groups(*sys.argv[1:3], ["--pp", "2", "--dp", "2"], 2, 2)


if __name__ == "__main__":
    main()
