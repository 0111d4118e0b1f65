#!/usr/bin/env python3
"""Greedy tokens of Troupe against llama.cpp's, for 20 prompts of 64 tokens each.

usage: llama_cpp_greedy.py TROUPE MODEL.gguf [--threads N] [--length N]      (needs llama-cpp-python)

On quantised weights both sides round activations to 8 bits, and a difference in the last bit of one sum can move a rounding: logits then
differ by that noise. So where the two part, the margin between the two candidates is printed for both sides, and llama.cpp is also
compared with itself, once with an F32 and once with an F16 KV cache: a harmless change, which shows how easily such weights part
without Troupe in the picture. On F32 weights (dequantise_gguf.py makes them) there is no such rounding, and the tokens must be equal.
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


def first_difference(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None)


def troupe_greedy(server, tokens, length):
    body = {"prompt": tokens, "max_tokens": length, "temperature": 0, "ignore_eos": True, "logprobs": 2, "return_token_ids": True}
    status, reply = server.post("/v1/completions", body)
    assert status == 200, reply
    choice = reply["choices"][0]
    return choice["token_ids"], choice["logprobs"]["top_logprobs"]


def margin(scores, a, b):
    return abs(scores[a] - scores[b])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("troupe")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--tie", type=float, default=0.5, help="largest margin in log-probability that still counts as a tie")
    args = parser.parse_args()
    threads = {"n_threads": args.threads, "n_threads_batch": args.threads}
    reference = llama_cpp.Llama(args.model, n_ctx=1024, type_k=0, type_v=0, verbose=False, **threads)
    with_f16_cache = llama_cpp.Llama(args.model, n_ctx=1024, verbose=False, **threads)
    equal, self_equal, ties, wrong = 0, 0, [], 0
    with Server(args.troupe, args.model, "--max-model-len", "1024", "--threads", str(args.threads), "--kv-cache-dtype", "f32") as server:
        for prompt in PROMPTS:
            status, reply = server.post("/tokenize", {"prompt": prompt})
            assert status == 200, reply
            tokens = reply["tokens"]
            theirs_ids = reference.tokenize(prompt.encode(), add_bos=False, special=True)
            assert tokens == theirs_ids, f"{prompt!r}: tokenized as {tokens}, by llama.cpp as {theirs_ids}"
            theirs, scores = llama_greedy(reference, tokens, args.length)
            again, _ = llama_greedy(with_f16_cache, tokens, args.length)
            itself = first_difference(theirs, again)
            self_equal += itself is None
            self_text = "equal" if itself is None else f"parts at {itself} (margin {margin(scores[itself], theirs[itself], again[itself]):.3f})"
            ours, tops = troupe_greedy(server, tokens, args.length)
            at = first_difference(ours, theirs)
            if at is None:
                equal += 1
                text = "equal"
            else:
                gap = margin(scores[at], theirs[at], ours[at])
                ties.append(gap) if gap < args.tie else None
                wrong += gap >= args.tie
                best = sorted(tops[at].values())[-2:]  # keyed by text: two tokens of one text count once
                text = f"parts at {at} ({'tie' if gap < args.tie else 'WRONG'}: margin {best[-1] - best[0]:.3f} here, {gap:.3f} there)"
            print(f"{prompt[:32]!r:36} {text:56} llama.cpp with F16 KV: {self_text}", flush=True)
    print(f"{equal} prompts equal, {len(ties)} part at a tie (largest margin {max(ties, default=0):.3f}), {wrong} wrong; ", end="")
    print(f"llama.cpp with an F16 cache equals itself with an F32 one in {self_equal}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
