#!/usr/bin/env python3
"""Strikes one rank of a group of devices in mid-stream, again and again, and measures what clients and operators see of it.

Prints a Markdown table: how long until the server says that the group is lost, how long until the next token, requests lost, and tokens that
differ from an undisturbed run. With --check it fails where the promises of docs/reliability.md are broken.

usage: failure_table.py TROUPE MODEL [--rounds 20] [--check] [-- FLAGS OF SERVE]      (default flags: --tp 3 --isolate-devices)
"""
import argparse
import os
import random
import re
import signal
import statistics
import sys
import threading
import time

from server import Server

CASES = [
    {"prompt": "The history of the lighthouse begins", "temperature": 0},
    {"prompt": "Once upon a time", "temperature": 0.9, "seed": 7},
    {"prompt": "def fibonacci(n):", "temperature": 1.2, "seed": 99, "top_p": 0.9},
    {"prompt": "List of colours: red, green,", "temperature": 0, "repetition_penalty": 1.2},
]
MAX_TOKENS = 64
DETECTION_LIMIT_S = 2.0


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def freeze(pid):
    os.kill(pid, signal.SIGSTOP)


def crash(pid):
    os.kill(pid, signal.SIGSEGV)


def slow_down(pid):
    """Runs for a fifth of the time, for three seconds; each pause is shorter than the silence that counts as a loss."""
    for _ in range(12):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.2)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.05)


def kill_again(server, pid):
    """And another rank of the group that takes its place, while that starts."""
    before = server.children()
    kill(pid)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        fresh = [p for p in server.children() if p not in before]
        if len(fresh) == len(before):
            return kill(fresh[-1])
        time.sleep(0.002)


# name, what strikes, whether the group is lost by it
FAULTS = [
    ("killed (SIGKILL: by hand, or by the kernel for want of memory)", lambda server, pid: kill(pid), True),
    ("frozen (SIGSTOP)", lambda server, pid: freeze(pid), True),
    ("device fault (the rank's process crashes)", lambda server, pid: crash(pid), True),
    ("killed, and a rank of the next group while that starts", kill_again, True),
    ("slow (a fifth of its speed for 3 s)", lambda server, pid: slow_down(pid), False),
]


class Round:
    """All cases as streams at once; `strike` is called in mid-stream."""

    def __init__(self, server):
        self.server = server
        self.texts = [None] * len(CASES)
        self.errors = 0
        self.moments = []  # of events, over all streams
        self.lock = threading.Lock()
        self.begun = threading.Event()

    def ask(self, i):
        joined = {}

        def on_event(event):
            with self.lock:
                self.moments.append(time.monotonic())
                if len(self.moments) >= 5 * len(CASES):
                    self.begun.set()
            return False

        try:
            body = {**CASES[i], "max_tokens": MAX_TOKENS, "ignore_eos": True}
            for event in self.server.stream("/v1/completions", body, on_event):
                for choice in event["choices"]:
                    joined[choice["index"]] = joined.get(choice["index"], "") + choice["text"]
        except (AssertionError, OSError) as failure:
            print(f"lost: {failure!r}", file=sys.stderr)
            self.errors += 1
        self.texts[i] = joined

    def run(self, strike=None):
        threads = [threading.Thread(target=self.ask, args=(i,)) for i in range(len(CASES))]
        for thread in threads:
            thread.start()
        if strike:
            assert self.begun.wait(120), "no tokens"
            strike()
        for thread in threads:
            thread.join()
        return self


class LogWatch:
    """When the server said that a device was lost."""

    def __init__(self, server):
        self.path = server.log.name
        self.offset = os.path.getsize(self.path)

    def wait(self, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with open(self.path, errors="replace") as log:
                log.seek(self.offset)
                if re.search("device lost", log.read()):
                    return time.monotonic()
            time.sleep(0.003)
        return None


def differing(texts, expected):
    """Characters from the first difference on, of all streams."""
    count = 0
    for text, whole in zip(texts, expected):
        for index, right in whole.items():
            said = (text or {}).get(index, "")
            same = len(os.path.commonprefix([said, right]))
            count += max(len(said), len(right)) - same
    return count


def measure(server, expected, strike, losing, random_rank):
    pids = sorted(server.children())
    victim = random_rank.choice(pids)
    seen = {}

    def watch(log):
        seen["noticed"] = log.wait(30 if losing else 0)

    def hit():
        log = LogWatch(server)
        seen["struck"] = time.monotonic()
        if not losing:
            strike(server, victim)
        watching = threading.Thread(target=watch, args=(log,))
        watching.start()
        if losing:
            strike(server, victim)
        watching.join()

    restarts = server.metric("troupe_device_restarts_total")
    done = Round(server).run(hit)
    after = [m for m in done.moments if m > (seen["noticed"] or seen["struck"])] if losing else []
    return {
        "detect": seen["noticed"] - seen["struck"] if seen["noticed"] else None,
        "resume": after[0] - seen["struck"] if after else None,
        "lost": done.errors,
        "differ": differing(done.texts, expected),
        "restarts": server.metric("troupe_device_restarts_total") - restarts,
    }


def spread(values):
    values = [v for v in values if v is not None]
    if not values:
        return "-"
    return f"{statistics.median(values):.2f} s ({max(values):.2f} s)"


def main():
    own, flags = sys.argv[1:], ["--tp", "3", "--isolate-devices"]
    if "--" in own:
        flags = own[own.index("--") + 1 :]
        own = own[: own.index("--")]
    parser = argparse.ArgumentParser()
    parser.add_argument("troupe")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", help="faults whose name contains this")
    args = parser.parse_args(own)
    random_rank = random.Random(1)
    broken = []
    print("| fault | times | noticed after: median (longest) | next token after: median (longest) | restarts | requests lost | characters that differ |")
    print("|---|---|---|---|---|---|---|")
    with Server(args.troupe, args.model, "--max-model-len", "1024", "--max-device-restarts", "1000", *flags) as server:
        expected = Round(server).run().texts
        assert all(expected), expected
        for name, strike, losing in FAULTS:
            if args.only and args.only not in name:
                continue
            rounds = [measure(server, expected, strike, losing, random_rank) for _ in range(args.rounds)]
            detect = [r["detect"] for r in rounds]
            lost, differ, restarts = (sum(r[k] for r in rounds) for k in ("lost", "differ", "restarts"))
            print(f"| {name} | {len(rounds)} | {spread(detect)} | {spread([r['resume'] for r in rounds])} | {restarts:.0f} | {lost} | {differ} |", flush=True)
            if lost or differ:
                broken.append(f"{name}: {lost} requests lost, {differ} characters differ")
            if losing and (None in detect or max(detect) > DETECTION_LIMIT_S):
                broken.append(f"{name}: not noticed within {DETECTION_LIMIT_S} s")
            if losing != (restarts > 0):
                broken.append(f"{name}: {restarts:.0f} restarts")
    if args.check and broken:
        raise SystemExit("\n".join(broken))


if __name__ == "__main__":
    main()
