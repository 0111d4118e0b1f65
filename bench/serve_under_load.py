#!/usr/bin/env python3
"""Serves a model, loads it as clients would, and writes what they felt: one load as requests arrive (a Poisson process), one with all at once.

usage: serve_under_load.py TROUPE MODEL --json FILE [--rate R --requests N] [--burst N] [--input L] [--output L] [--ttft MS] [--itl MS]
       [-- flags of serve]

A request is good when its first token came within --ttft and its further ones within --itl in the mean. When each request was sent, and its
lengths, are kept in the result for `troupe simulate --trace` (bench/scaling_predict.py). Fails when a request fails.
"""
import json
import pathlib
import subprocess
import tempfile
import time

from measured_server import argument_parser, head, read_arguments, write  # makes tests/e2e importable
from server import Server


def load(args, server, requests, rate, seed):
    """The report of `troupe bench serve`, with the trace of what was sent."""
    with tempfile.TemporaryDirectory() as name:
        report, trace = pathlib.Path(name) / "report.json", pathlib.Path(name) / "trace.csv"
        words = [args.troupe, "bench", "serve", "--url", server.url, "--num-prompts", requests, "--request-rate", rate, "--seed", seed,
                 "--input-len", args.input, "--output-len", args.output, "--goodput", f"ttft:{args.ttft}", f"tpot:{args.itl}",
                 "--json", report, "--save-trace", trace]
        done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, text=True, check=False)
        print(done.stdout, flush=True)
        if done.returncode != 0 or not report.exists():
            raise SystemExit(f"bench serve: exit code {done.returncode}")
        out = json.loads(report.read_text())
        out["trace_csv"] = trace.read_text()
        return out


def value_of(flags, name, otherwise):
    return int(flags[flags.index(name) + 1]) if name in flags else otherwise


def main():
    parser = argument_parser()
    parser.add_argument("--rate", type=float, default=4)
    parser.add_argument("--requests", type=int, default=40, help="of the load that arrives at --rate; 0 leaves it out")
    parser.add_argument("--burst", type=int, default=0, help="requests of the load that comes all at once; 0 leaves it out")
    parser.add_argument("--input", default="128")
    parser.add_argument("--output", default="64")
    parser.add_argument("--ttft", type=float, default=500)
    parser.add_argument("--itl", type=float, default=30)
    args = read_arguments(parser)
    flags = args.flags
    begin = time.monotonic()
    with Server(args.troupe, args.model, *flags) as server:
        ready = time.monotonic() - begin
        arriving = load(args, server, args.requests, args.rate, 1) if args.requests else None
        server.wait_idle()
        at_once = load(args, server, args.burst, "inf", 2) if args.burst else None
        restarts = server.metric("troupe_device_restarts_total")
    result = {
        **head("serving", args),
        "parallel": {name: value_of(flags, f"--{name}", 1) for name in ("tp", "pp", "dp")},
        "limits": {"max_num_seqs": value_of(flags, "--max-num-seqs", None), "max_num_batched_tokens": value_of(flags, "--max-num-batched-tokens", None)},
        "objectives_ms": {"ttft": args.ttft, "itl": args.itl},
        "ready_seconds": ready,
        "device_restarts": restarts,
        "arriving": arriving,
        "at_once": at_once,
    }
    write(args.json, result)
    failed = sum(part["requests"]["failed"] for part in (arriving, at_once) if part)
    if failed or restarts:
        raise SystemExit(f"{failed} requests failed, {restarts:.0f} device restarts")


if __name__ == "__main__":
    main()
