#!/usr/bin/env python3
"""The simulator against the real CPU server on the same requests: throughput and median TTFT.

usage: compare_simulator.py TROUPE MODEL [--loads RATE:INPUT:OUTPUT:COUNT ...] [--rounds N] [--calibrate-seconds S] [-- engine flags]

A load is requests per second, prompt and output tokens (N, or LOW-HIGH), and how many requests; arrivals are a Poisson process unless
--burstiness says otherwise. Each round sends each load to the server and simulates the very same requests, with the arrivals and lengths
that `troupe bench serve` saved, on the mean of two tables, calibrated right before and right after. Where these two differ by more than
--steady, the machine has changed its speed meanwhile, and the load is sent again. Fails when the median over the rounds of simulated over
real is further from 1 than --tolerance. Wants a machine that does nothing else.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))
from server import Server, split_flags  # noqa: E402

LOADS = ["1:128:32:12", "4:64-256:16-64:48", "1.5:250-500:40-100:18", "6:20-120:8-24:60"]
FLAGS = ["--max-num-seqs", "16", "--max-num-batched-tokens", "256", "--kv-cache-memory", "512MiB", "--max-model-len", "2048"]
FIGURES = ("tokens/s", "TTFT ms", "E2EL ms")
JUDGED = FIGURES[:2]
MOST_TRIES = 8


def parse_load(text):
    rate, prompt, output, count = text.split(":")
    return {"name": text, "rate": float(rate), "input": prompt.replace("-", ":"), "output": output.replace("-", ":"), "count": int(count)}


def run(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(str(w) for w in words)}\n{done.stdout}{done.stderr}")
    return done.stdout, done.stderr


def serve(troupe, url, load, burstiness, seed, trace):
    said, errors = run(
        *(troupe, "bench", "serve", "--url", url, "--num-prompts", load["count"], "--request-rate", load["rate"]),
        *("--burstiness", burstiness, "--input-len", load["input"], "--output-len", load["output"], "--seed", seed),
        *("--save-trace", trace, "--json", "-"),
    )
    report = json.loads(said)
    if report["requests"]["failed"]:
        sys.exit(f"load {load['name']}: {report['failures']}\n{errors}")
    latency = report["latency_ms"]
    return report["throughput"]["output_tokens_per_second"], latency["ttft"]["median"], latency["e2el"]["median"]


def simulate(troupe, table, trace):
    fleet = ["--nodes", 1, "--gpus-per-node", 1, "--exact"]
    said, _ = run(troupe, "simulate", "--device-table", table, *fleet, "--trace", trace, "--json", "-")
    point = json.loads(said)["points"][0]
    figures = point["output_tokens_per_second"], point["ttft_ms"]["p50"], point["e2e_ms"]["p50"]
    return *figures, point["busy"], point["busy"] * point["seconds"]


def calibrate(o, folder):
    run(o.troupe, "bench", "calibrate", o.model, *o.flags, "--seconds", o.calibrate_seconds, "-o", folder / "one.json")
    return json.loads((folder / "one.json").read_text())


def mean(a, b):
    """Of two tables: of every number in them; the rest is the same."""
    if isinstance(a, dict):
        return {key: mean(a[key], b[key]) for key in a}
    if isinstance(a, list):
        return [mean(x, y) for x, y in zip(a, b, strict=True)]
    return a if a == b else (a + b) / 2


def change(before, after):
    """How much slower the machine has become, as a ratio less 1."""
    times = [sum(t["decode"]["ns"]) + sum(t["prefill"]["ns"]) for t in (before, after)]
    return times[1] / times[0] - 1


class Comparison:
    def __init__(self, options, server, folder):
        self.o, self.server, self.folder = options, server, folder
        serve(options.troupe, server.url, {**options.loads[0], "rate": 1e3, "count": 2}, 1, 0, folder / "warm-up.csv")
        self.table = calibrate(options, folder)

    def run(self, number, load):
        """(server's figures, simulated figures)"""
        for again in range(MOST_TRIES):
            before, trace, both = self.table, self.folder / "trace.csv", self.folder / "both.json"
            before_s = self.server.metric("troupe_step_seconds_sum")
            real = serve(self.o.troupe, self.server.url, load, self.o.burstiness, 100 * number + again, trace)
            stepped = self.server.metric("troupe_step_seconds_sum") - before_s
            self.table = calibrate(self.o, self.folder)
            both.write_text(json.dumps(mean(before, self.table)))
            *made, busy, seconds = simulate(self.o.troupe, both, trace)
            changed = change(before, self.table)
            cells = "  ".join(f"{name} {a:7.1f} {b:7.1f} {b / a:5.2f}" for name, a, b in zip(FIGURES, real, made))
            steady = abs(changed) <= self.o.steady
            line = f"{number:5}  {load['name']:20} {cells}  {busy:4.0%} {seconds / stepped:5.2f}"
            print(line + ("" if steady else f"  again: steps take {changed:+.0%}"), flush=True)
            if steady:
                return real, made
        sys.exit(f"the machine is too unsteady: {MOST_TRIES} times in a row its speed changed by more than {self.o.steady:.0%} meanwhile")


def judge(rounds, loads, tolerance):
    """Prints the medians over the rounds; how many of them are out of bounds."""
    misses = 0
    for load in loads:
        cells = []
        for i, name in enumerate(FIGURES):
            ratio = statistics.median(r[load["name"]][1][i] / r[load["name"]][0][i] for r in rounds)
            missed = name in JUDGED and abs(ratio - 1) > tolerance
            misses += missed
            cells.append(f"{name} {ratio:5.2f}" + (" FAR" if missed else ""))
        print(f"median {load['name']:24} " + "  ".join(cells))
    return misses


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("troupe")
    words.add_argument("model")
    words.add_argument("--loads", nargs="+", type=parse_load, default=[parse_load(load) for load in LOADS])
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--calibrate-seconds", type=float, default=5)
    words.add_argument("--steady", type=float, default=0.08)
    words.add_argument("--burstiness", type=float, default=1)
    words.add_argument("--tolerance", type=float, default=0.15)
    own, flags = split_flags(sys.argv[1:])
    o = words.parse_args(own)
    o.flags = flags or FLAGS
    print("round  load: server, simulated, ratio of each figure; share of the time that the simulated device is busy,")
    print("and its busy seconds over the real ones")
    with tempfile.TemporaryDirectory() as name, Server(o.troupe, o.model, *o.flags) as server:
        compared = Comparison(o, server, pathlib.Path(name))
        rounds = [{load["name"]: compared.run(number, load) for load in o.loads} for number in range(1, o.rounds + 1)]
    misses = judge(rounds, o.loads, o.tolerance)
    print(f"{misses} of {len(o.loads) * len(JUDGED)} are further off than {o.tolerance:.0%}" if misses else f"all within {o.tolerance:.0%}")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
