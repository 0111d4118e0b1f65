#!/usr/bin/env python3
"""Kills the device process in mid-stream: greedy and seeded outputs must be those of an undisturbed run, and nothing may be lost.

usage: recovery.py TROUPE MODEL
"""
import os
import signal
import sys
import threading
import time

from server import Server

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


def main():
    with Server(sys.argv[1], sys.argv[2], "--isolate-devices", "--max-model-len", "1024") as server:
        expected = ask_all(server)
        assert all(expected), expected
        for name in ("SIGKILL", "SIGSEGV"):
            (child,) = server.children("worker")
            start = time.monotonic()
            texts = ask_all(server, lambda: os.kill(child, getattr(signal, name)))
            assert texts == expected, (name, texts, expected)
            (replacement,) = server.children("worker")
            assert replacement != child
            print(f"{name}: {len(CASES)} requests ended with the undisturbed text, {time.monotonic() - start:.1f} s in all")
        assert server.metric("troupe_device_restarts_total") == 2
        server.wait_idle()
        (child,) = server.children("worker")
    time.sleep(0.2)
    assert not os.path.exists(f"/proc/{child}"), "the device process outlived its parent"


if __name__ == "__main__":
    main()
