#!/usr/bin/env python3
"""Tokens per second beside llama.cpp's, for the same GGUF file and threads, runs interleaved.

usage: compare_llama_cpp.py EXECUTOR_BENCH MODEL.gguf [--threads N] [--prompt N] [--generate N] [--runs N]

EXECUTOR_BENCH is built by `cmake --build --preset release --target executor_bench`; needs llama-cpp-python.
"""
import argparse
import re
import statistics
import subprocess
import time

import llama_cpp


def llama_run(model, prompt, generate):
    """(prompt tokens/s, generated tokens/s) of one run on fixed token ids."""
    tokens = [(i * 7919) % 40000 + 100 for i in range(prompt)]
    model.reset()
    start = time.perf_counter()
    model.eval(tokens)
    middle = time.perf_counter()
    for i in range(generate):
        model.eval([(i * 31) % 40000 + 100])
    end = time.perf_counter()
    return prompt / (middle - start), generate / (end - middle)


def troupe_run(program, path, threads, prompt, generate):
    words = [program, path, str(threads), str(prompt), str(generate), "1"]
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    found = re.search(r"best\s+(\S+) tokens/s\s+generation\s+(\S+) tokens/s", text)
    return float(found.group(1)), float(found.group(2))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("executor_bench")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    reference = llama_cpp.Llama(
        args.model, n_ctx=2048, n_batch=512, n_ubatch=512, n_threads=args.threads, n_threads_batch=args.threads, verbose=False
    )
    rows = []
    for _ in range(args.runs):
        rows.append(llama_run(reference, args.prompt, args.generate) + troupe_run(args.executor_bench, args.model, args.threads, args.prompt, args.generate))
    print(f"{'tokens/s, median (best)':26} {'llama.cpp':>18} {'troupe':>18} {'ratio':>7}")
    for name, theirs, ours in (("prompt", 0, 2), ("generation", 1, 3)):
        a = [row[theirs] for row in rows]
        b = [row[ours] for row in rows]
        print(
            f"{name + ' ' + str(args.prompt if theirs == 0 else args.generate):26} {statistics.median(a):9.1f} ({max(a):6.1f}) "
            f"{statistics.median(b):9.1f} ({max(b):6.1f}) {statistics.median(b) / statistics.median(a):6.2f}x"
        )


if __name__ == "__main__":
    main()
