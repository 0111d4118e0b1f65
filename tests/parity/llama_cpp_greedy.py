#!/usr/bin/env python3
"""Greedy tokens of a running model against llama.cpp's, for 20 prompts of 64 tokens each.

usage: llama_cpp_greedy.py TROUPE MODEL.gguf [--threads N] [--length N]      (needs llama-cpp-python)

Where the two part, the margin between the two best logits there is printed for both sides: a difference is accepted only
where both call it a near tie (below --tie in log-probability).
"""
import argparse
import pathlib
import sys

import llama_cpp
import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from server import Server  # noqa: E402

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def quicksort(items):\n    ",
    "Water boils at a temperature of",
    "The three branches of government are",
    "import numpy as np\n\n",
    "Q: What is photosynthesis?\nA:",
    "1, 1, 2, 3, 5, 8, 13,",
    "Dear Sir or Madam,\n\nI am writing to",
    "Le petit chat est",
    "The quick brown fox",
    "SELECT name, age FROM users WHERE",
    "In 1969, humans first",
    "Ingredients:\n- 2 cups flour\n-",
    "The theory of relativity was",
    "<html>\n<head>\n<title>",
    "My favourite season is autumn because",
    "Breaking news: scientists have discovered",
    "To be, or not to be:",
    "日本の首都は",
]


def llama_greedy(model, tokens, length):
    """`length` greedy tokens after `tokens`, and each step's log-softmax."""
    model.reset()
    model.eval(tokens)
    out, scores = [], []
    for _ in range(length):
        logits = numpy.ctypeslib.as_array(llama_cpp.llama_get_logits(model.ctx), shape=(model.n_vocab(),)).astype(numpy.float64)
        peak = logits.max()
        scores.append(logits - (peak + numpy.log(numpy.exp(logits - peak).sum())))
        out.append(int(logits.argmax()))
        model.eval([out[-1]])
    return out, scores


def troupe_greedy(server, tokens, length):
    body = {"prompt": tokens, "max_tokens": length, "temperature": 0, "ignore_eos": True, "logprobs": 2, "return_token_ids": True}
    status, reply = server.post("/v1/completions", body)
    assert status == 200, reply
    choice = reply["choices"][0]
    return choice["token_ids"], choice["logprobs"]["top_logprobs"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("troupe")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--tie", type=float, default=0.1)
    args = parser.parse_args()
    reference = llama_cpp.Llama(args.model, n_ctx=1024, n_threads=args.threads, n_threads_batch=args.threads, verbose=False)
    equal, ties, wrong = 0, 0, 0
    with Server(args.troupe, args.model, "--max-model-len", "1024") as server:
        for prompt in PROMPTS:
            status, reply = server.post("/tokenize", {"prompt": prompt})
            assert status == 200, reply
            tokens = reply["tokens"]
            theirs_ids = reference.tokenize(prompt.encode(), add_bos=False, special=True)
            assert tokens == theirs_ids, f"{prompt!r}: tokenized as {tokens}, by llama.cpp as {theirs_ids}"
            theirs, scores = llama_greedy(reference, tokens, args.length)
            ours, tops = troupe_greedy(server, tokens, args.length)
            if ours == theirs:
                equal += 1
                continue
            at = next(i for i in range(args.length) if ours[i] != theirs[i])
            ours_margin = abs(numpy.diff(sorted(tops[at].values())[-2:])[0])
            theirs_margin = scores[at][theirs[at]] - scores[at][ours[at]]
            tie = max(ours_margin, theirs_margin) < args.tie
            ties, wrong = ties + tie, wrong + (not tie)
            print(
                f"{prompt!r}: part at token {at} ({'near tie' if tie else 'WRONG'}): margin {ours_margin:.4f} here, {theirs_margin:.4f} in llama.cpp"
            )
    print(f"{equal} prompts equal, {ties} part at a near tie, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
