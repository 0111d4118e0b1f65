#!/usr/bin/env python3
"""Greedy tokens of one model under several layouts: how many are the same as on one device, prompt by prompt.

usage: same_tokens.py TROUPE MODEL --json FILE --layouts TPxPP,.. [--tokens 64] [--exact] [-- flags of serve]

A layout of 2x1 is --tp 2 --pp 1. With --exact it fails where a token differs; GPUs sum up in another order, so there texts may part where
the two best tokens lie within rounding.
"""
import os

from measured_server import argument_parser, head, read_arguments, write  # makes tests/e2e importable
from server import Server

PROMPTS = ["The history of the lighthouse begins", "Once upon a time", "def fibonacci(n):", "List of colours: red, green,", "a"]


class NotRun(Exception):
    pass


def answers(args, tp, pp):
    try:
        with Server(args.troupe, args.model, "--tp", str(tp), "--pp", str(pp), *args.flags) as server:
            texts = []
            for prompt in PROMPTS:
                status, reply = server.post("/v1/completions", {"prompt": prompt, "max_tokens": args.tokens, "temperature": 0, "ignore_eos": True})
                if status != 200:
                    raise NotRun(f"{status} {reply}")
                texts.append(reply["choices"][0]["text"])
            return texts
    except (OSError, RuntimeError) as failure:  # it does not start, with the reason in its last line
        raise NotRun(str(failure).strip().splitlines()[-1][:300]) from None


def compare(args, tp, pp, alone):
    row = {"tp": tp, "pp": pp, "texts_equal": None, "texts": len(alone), "characters_equal": None, "characters": sum(map(len, alone)), "not_run": None}
    try:
        same = [len(os.path.commonprefix([text, whole])) for text, whole in zip(answers(args, tp, pp), alone)]
    except NotRun as reason:
        row["not_run"] = str(reason)
        print(f"tp {tp} pp {pp}: not run: {reason}", flush=True)
        return row
    row["texts_equal"] = sum(count == len(text) for count, text in zip(same, alone))
    row["characters_equal"] = sum(same)
    print(f"tp {tp} pp {pp}: {row['texts_equal']} of {len(alone)} texts equal, {sum(same)} of {row['characters']} characters up to where they part", flush=True)
    return row


def main():
    parser = argument_parser()
    parser.add_argument("--layouts", required=True)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--exact", action="store_true")
    args = read_arguments(parser)
    layouts = [tuple(int(n) for n in text.split("x")) for text in args.layouts.split(",")]
    result = {**head("tokens", args), "tokens": args.tokens, "layouts": []}
    alone = answers(args, 1, 1)
    for tp, pp in layouts:
        result["layouts"].append(compare(args, tp, pp, alone))
        write(args.json, result)  # what was measured before a failure counts
    if any(row["not_run"] or (args.exact and row["texts_equal"] < row["texts"]) for row in result["layouts"]):
        raise SystemExit("texts differ, or a layout was not run")


if __name__ == "__main__":
    main()
