#!/usr/bin/env python3
"""Greedy tokens of one model under several layouts: how many are the same as on one device, prompt by prompt.

usage: same_tokens.py TROUPE MODEL --json FILE --layouts TPxPP,.. [--tokens 64] [--exact] [-- flags of serve]

A layout of 2x1 is --tp 2 --pp 1. With --exact it fails where a token differs; GPUs sum up in another order, so there texts may part where
the two best tokens lie within rounding.
"""
import argparse
import datetime
import json
import os
import pathlib
import shlex
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))
from kill_worker import machine  # noqa: E402
from server import Server, split_flags  # noqa: E402

PROMPTS = ["The history of the lighthouse begins", "Once upon a time", "def fibonacci(n):", "List of colours: red, green,", "a"]


def answers(args, flags, tp, pp):
    with Server(args.troupe, args.model, "--tp", str(tp), "--pp", str(pp), *flags) as server:
        texts = []
        for prompt in PROMPTS:
            status, reply = server.post("/v1/completions", {"prompt": prompt, "max_tokens": args.tokens, "temperature": 0, "ignore_eos": True})
            if status != 200:
                raise SystemExit(f"tp {tp}, pp {pp}: {status} {reply}")
            texts.append(reply["choices"][0]["text"])
        return texts


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("out of time"))  # so that the server is stopped
    own, flags = split_flags(sys.argv[1:])
    parser = argparse.ArgumentParser()
    parser.add_argument("troupe")
    parser.add_argument("model")
    parser.add_argument("--json", type=pathlib.Path, required=True)
    parser.add_argument("--layouts", required=True)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--exact", action="store_true")
    args = parser.parse_args(own)
    layouts = [tuple(int(n) for n in text.split("x")) for text in args.layouts.split(",")]
    alone = answers(args, flags, 1, 1)
    rows = []
    for tp, pp in layouts:
        same = [len(os.path.commonprefix([text, whole])) for text, whole in zip(answers(args, flags, tp, pp), alone)]
        equal = sum(count == len(text) for count, text in zip(same, alone))
        rows.append({"tp": tp, "pp": pp, "texts_equal": equal, "texts": len(alone), "characters_equal": sum(same), "characters": sum(map(len, alone))})
        print(f"tp {tp} pp {pp}: {equal} of {len(alone)} texts equal, {rows[-1]['characters_equal']} of {rows[-1]['characters']} characters up to where they part", flush=True)
    words = ["same_tokens.py", "troupe", args.model, "--layouts", args.layouts, "--tokens", str(args.tokens), *(["--exact"] if args.exact else []), "--", *flags]
    result = {
        "kind": "tokens",
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": shlex.join(words),
        "device": "cpu" if "cpu" in flags else "cuda",
        "machine": machine(),
        "model": {"name": pathlib.Path(args.model).name},
        "tokens": args.tokens,
        "layouts": rows,
    }
    args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if args.exact and any(row["texts_equal"] < row["texts"] for row in rows):
        raise SystemExit("texts differ")


if __name__ == "__main__":
    main()
