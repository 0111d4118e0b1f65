#!/usr/bin/env python3
"""Many streams at once with random cancels, for as long as asked; at the end nothing may have leaked. Requests that ask for the same must have
been told the same, whatever ran beside them and whatever was preempted or killed: true of a CPU, and of a GPU with --batch-invariant.

usage: soak.py TROUPE MODEL [--seconds S] [--streams N] [--kill-every S] [--tolerance-mib M] [--texts-may-differ] [-- FLAGS OF SERVE]
--kill-every runs the device in a process of its own and kills that with SIGKILL: no stream may notice but by a pause.
"""
import argparse
import os
import random
import signal
import sys
import threading
import time

from server import Server, split_flags

PROMPTS = ["Tell me about the sea.", "Write a list of ten animals.", "What is 17 + 25?", "Explain why the sky is blue.", "Hello!"]


class Tally:
    def __init__(self):
        self.lock = threading.Lock()
        self.finished = self.cancelled = self.tokens = 0
        self.errors = []
        self.texts = {}  # the longest so far, by what was asked for
        self.compared = 0
        self.differing = []

    def compare(self, asked, text):
        """`text`, or a beginning of it, must be what others who asked for the same were told."""
        text = text.rstrip("\ufffd")  # half of a character, where a limit or a cancel cut it
        with self.lock:
            other = self.texts.setdefault(asked, "")
            self.compared += bool(other and text)
            if os.path.commonprefix([text, other]) != min(text, other, key=len):
                self.differing.append((asked, other, text))
            self.texts[asked] = max(text, other, key=len)

    def add(self, **counts):
        with self.lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)


def one_stream(server, rng, tally):
    limit = rng.randint(4, 120)
    hang_up_after = rng.randint(0, limit) if rng.random() < 0.4 else None
    seen = 0

    def on_event(event):
        nonlocal seen
        seen += 1
        return hang_up_after is not None and seen > hang_up_after

    body = {
        "messages": [{"role": "user", "content": rng.choice(PROMPTS) + " " + "and so on " * rng.choice([0, 7, 20])}],
        "max_tokens": limit,
        "temperature": rng.choice([0, 0.8]),
        "seed": rng.randint(0, 2),
        "ignore_eos": rng.random() < 0.5,
    }
    events = server.stream("/v1/chat/completions", body, on_event)
    asked = (body["messages"][0]["content"], body["temperature"], body["temperature"] and body["seed"], body["ignore_eos"])
    tally.compare(asked, "".join(c["delta"].get("content") or "" for e in events for c in e["choices"]))
    ended = any(c.get("finish_reason") for e in events for c in e["choices"])
    tally.add(tokens=seen, **({"finished": 1} if ended else {"cancelled": 1}))


def client(server, seed, stop_at, tally):
    rng = random.Random(seed)
    while time.monotonic() < stop_at:
        try:
            one_stream(server, rng, tally)
        except Exception as failure:  # every failure is a finding
            with tally.lock:
                tally.errors.append(repr(failure)[:300])
            time.sleep(0.2)


def killer(server, every, stop_at, kills):
    while time.monotonic() + every < stop_at:
        time.sleep(every)
        for pid in server.children():
            os.kill(pid, signal.SIGKILL)
            kills.append(pid)


def main():
    own, flags_of_serve = split_flags(sys.argv[1:])
    parser = argparse.ArgumentParser()
    parser.add_argument("troupe")
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--kill-every", type=float, default=0)
    parser.add_argument("--tolerance-mib", type=float, default=64)
    parser.add_argument("--texts-may-differ", action="store_true")
    args = parser.parse_args(own)
    # A small KV pool is full soon, with the prefix cache's blocks too, and it preempts. What of it is not yet used at the first look at
    # the memory may be used later.
    pool_mib = 128
    flags = ["--max-model-len", "1024", "--kv-cache-memory", f"{pool_mib}MiB"] + (["--isolate-devices"] if args.kill_every else []) + flags_of_serve
    with Server(args.troupe, args.model, *flags) as server:
        tally, kills = Tally(), []
        start = time.monotonic()
        stop_at = start + args.seconds
        threads = [threading.Thread(target=client, args=(server, i, stop_at, tally)) for i in range(args.streams)]
        if args.kill_every:
            threads.append(threading.Thread(target=killer, args=(server, args.kill_every, stop_at, kills)))
        for thread in threads:
            thread.start()
        time.sleep(args.seconds / 3)
        early = server.rss_bytes()
        unused = server.metric("troupe_kv_blocks", 'state="free"') / server.metric("troupe_kv_blocks") * pool_mib * 2**20
        for thread in threads:
            thread.join()
        server.wait_idle()
        late = server.rss_bytes()
        print(
            f"{tally.finished} finished, {tally.cancelled} cancelled, {tally.tokens} events, {len(tally.errors)} errors, "
            f"{len(tally.differing)} texts of {tally.compared} differ from those of equal requests, "
            f"{len(kills)} kills, {server.metric('troupe_device_restarts_total'):.0f} restarts, "
            f"{server.metric('troupe_preemptions_total'):.0f} preemptions, RSS {early / 2**20:.0f} -> {late / 2**20:.0f} MiB"
        )
        assert not tally.errors, tally.errors[:5]
        assert args.texts_may_differ or not tally.differing, tally.differing[:3]
        assert tally.finished > 0 and tally.cancelled > 0
        assert late - early < args.tolerance_mib * 2**20 + unused, "memory grew"
        if args.kill_every:
            assert kills and server.metric("troupe_device_restarts_total") >= len(kills) - 1


if __name__ == "__main__":
    main()
