#!/usr/bin/env python3
"""Speculative decoding on and off: the same greedy text, and tokens per second beside each other, runs interleaved.

usage: speculation.py TROUPE MODEL [--runs N] [--tokens N] [--draft-model PATH] [-- server flags]

Prompts: "edit" repeats most of its input in its output, "list" repeats itself, "prose" does neither. One request at a time, then four.
"""
import argparse
import pathlib
import statistics
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))
from server import Server, split_flags  # noqa: E402

CODE = """def total(prices, taxes):
    result = 0
    for price in prices:
        result = result + price
    for tax in taxes:
        result = result + tax
    return result

def mean(prices, taxes):
    result = 0
    for price in prices:
        result = result + price
    for tax in taxes:
        result = result + tax
    return result / len(prices)
"""
PROMPTS = {
    "edit": f"The program, twice:\n\n{CODE}\n\nThe program, twice:\n\n{CODE[:60]}",
    "list": "one two three four one two three four one two three four one two",
    "prose": "The lighthouse keeper had not spoken to anybody for a month when, on a grey morning in",
}


def answer(server, prompt, tokens):
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    start = time.monotonic()
    status, reply = server.post("/v1/completions", body)
    seconds = time.monotonic() - start
    assert status == 200, reply
    return reply["choices"][0]["text"], reply["usage"]["completion_tokens"], seconds


def together(server, prompt, tokens, count):
    """Tokens per second of `count` equal requests at once, and their text."""
    texts = [None] * count

    def ask(i):
        texts[i] = answer(server, prompt, tokens)[0]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(count)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return texts, count * tokens / (time.monotonic() - start)


def drafts(server):
    return [server.metric(f"troupe_spec_{kind}_tokens_total") for kind in ("drafted", "accepted")]


def main():
    words = argparse.ArgumentParser()
    words.add_argument("troupe")
    words.add_argument("model")
    words.add_argument("--runs", type=int, default=3)
    words.add_argument("--tokens", type=int, default=128)
    words.add_argument("--draft-model")
    own, flags = split_flags(sys.argv[1:])
    o = words.parse_args(own)
    method = ["draft", "--speculative-draft-model", o.draft_model] if o.draft_model else ["ngram"]
    with Server(o.troupe, o.model, *flags) as off, Server(o.troupe, o.model, "--speculative-method", *method, *flags) as on:
        for server in (off, on):
            answer(server, "Warm up", 32)
        print(f"{'prompt':8} {'at once':>7} | {'off':>8} {'on':>8} tokens/s | {'ratio':>6} | accepted of drafted")
        for name, prompt in PROMPTS.items():
            for count in (1, 4):
                speeds = {id(off): [], id(on): []}
                before = drafts(on)
                for _ in range(o.runs):
                    said = []
                    for server in (off, on):
                        texts, speed = together(server, prompt, o.tokens, count)
                        said += texts
                        speeds[id(server)].append(speed)
                    assert len(set(said)) == 1, f"{name}: speculation changed the text"
                drafted, accepted = (now - then for now, then in zip(drafts(on), before))
                plain, fast = (statistics.median(speeds[id(server)]) for server in (off, on))
                print(f"{name:8} {count:7} | {plain:8.1f} {fast:8.1f}          | {fast / plain:6.2f} | {accepted:.0f} of {drafted:.0f}", flush=True)


if __name__ == "__main__":
    main()
