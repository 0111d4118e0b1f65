#!/usr/bin/env python3
"""Writes the tables of docs/performance.md that stand between markers, from the JSON files that the benches left under docs/results/.

usage: make_tables.py [--check] [--page PAGE] [--results FOLDER]

What bench/pair_results.sh left is in a folder "pair" there, what bench/scaling_results.sh left in "scaling-N" for N GPUs and "scaling-cpu". A marker is a line "<!-- results: NAME -->"; what follows, up to
"<!-- end -->", is replaced. --check changes nothing and fails when the page is not what the results say.
"""
import argparse
import difflib
import json
import pathlib
import re
import sys

from scaling_tables import SCALING_TABLES, load_scaling
from table_text import NOT_YET, model, number, origin, percent, table, times

ROOT = pathlib.Path(__file__).resolve().parent.parent
MARKED = re.compile(r"(<!-- results: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.S)


def load(folder):
    """Results by kind and file name, in the order of names."""
    out = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        for key in ("kind", "command", "machine", "date"):
            if key not in result:
                sys.exit(f"{path}: no \"{key}\": not a result of troupe bench")
        out[path.name] = result
    return out


def of_kind(results, kind, device="cuda"):
    return [(name, r) for name, r in results.items() if r["kind"] == kind and r.get("device") == device]


def find_decode(results, name, batch):
    for _, r in of_kind(results, "latency"):
        for d in r["decode"]:
            if model(r) == name and d["batch"] == batch:
                return d
    return None


def find_first(results, kind, name):
    return next((r for _, r in of_kind(results, kind) if model(r) == name), None)


def speed(results):
    """The goals beside what was measured."""
    big, small = "llama-3.1-8b", "llama-3.2-1b"
    rows = []
    for batch, must, aim in ((1, 1.15, 1.06), (8, 1.20, 1.10), (32, 1.25, 1.15), (128, 1.35, 1.20)):
        d = find_decode(results, big, batch)
        rows.append((f"decode step, batch {batch}, over the floor", times(d and d["over_floor"]), f"{must:.2f} x", f"{aim:.2f} x"))
    latency, load = find_first(results, "latency", big), find_first(results, "throughput", big)
    prefill = next((p for p in latency["prefill"] if p["prompt_tokens"] == 8192), None) if latency else None
    rows.append(("prefill of 8192 tokens, of the matrix product's peak", percent(prefill and prefill["matmul_share"]), "60%", "75%"))
    d = find_decode(results, small, 1)
    rows.append(("decode step of the 1B model, batch 1, over the floor", times(d and d["over_floor"]), "1.35 x", "1.15 x"))
    rows.append(("GPU idle between decode steps under load", percent(load and load["idle_share"], 2), "2%", "0.5%"))
    start = latency and latency["start_to_first_token_seconds"]
    rows.append(("start to first token", "-" if start is None else f"{start:.1f} s", "15 s", "5 s"))
    again = load and load["start_to_first_token_seconds"]
    rows.append(("start to first token, whole serving side, started later", "-" if again is None else f"{again:.1f} s", "15 s", "5 s"))
    rows.append(("p99 / median of inter-token latency under load", number(load and load["itl_p99_over_median"]), "2.0", "1.4"))
    if all(row[1] == "-" for row in rows):
        return NOT_YET
    return table(("", "measured", "at least", "hoped for"), rows)


def ceilings(results):
    found = of_kind(results, "ceilings")
    if not found:
        return NOT_YET
    out = []
    for name, r in found:
        c = r["ceilings"]
        out.append(table(("ceiling", "measured"), [
            ("reading", f"{c['read_bytes_per_second'] / 1e12:.3f} TB/s"),
            ("copying, both ways counted", f"{c['copy_bytes_per_second'] / 1e12:.3f} TB/s"),
            ("bf16 matrix product", f"{c['matmul_flops_per_second'] / 1e12:.0f} TFLOP/s"),
            ("empty kernel: eager, in a graph, overlapping in a graph", ", ".join(
                f"{c[f'launch_{k}_seconds'] * 1e6:.2f} us" for k in ("eager", "graph", "overlapped"))),
            ("pinned memory up, down", ", ".join(f"{c[f'pinned_{k}_bytes_per_second'] / 1e9:.1f} GB/s" for k in ("up", "down"))),
            ("1 KiB down, and its wait", f"{c['small_download_seconds'] * 1e6:.1f} us"),
        ]) + "\n" + origin(name, r))
    return "\n".join(out)


def latency(results, device="cuda"):
    found = of_kind(results, "latency", device)
    if not found:
        return NOT_YET
    out = []
    for name, r in found:
        rows = [(str(d["batch"]), f"{d['context']:.0f}", f"{d['median_ms']:.3f}", f"{d['p99_ms']:.3f}", number(d["floor_ms"], "{:.3f}"),
                 times(d["over_floor"]), f"{d['tokens_per_second']:.0f}", percent(d["idle_share"], 2)) for d in r["decode"]]
        text = f"{model(r)}\n\n"
        text += table(("batch", "context", "step, median ms", "p99 ms", "floor ms", "over the floor", "tokens/s", "idle"), rows)
        if r["prefill"]:
            text += "\n" + table(("prompt", "first token, median ms", "p99 ms", "tokens/s", "of the matrix product's peak"), [
                (str(p["prompt_tokens"]), f"{p['first_token_median_ms']:.2f}", f"{p['first_token_p99_ms']:.2f}", f"{p['tokens_per_second']:.0f}",
                 percent(p["matmul_share"])) for p in r["prefill"]])
        out.append(text + "\n" + origin(name, r))
    return "\n".join(out)


def throughput(results, device="cuda"):
    found = of_kind(results, "throughput", device)
    if not found:
        return NOT_YET
    out = []
    for name, r in found:
        ms, w = r["latency_ms"], r["workload"]
        rows = [
            ("requests, prompt tokens, output tokens", f"{w['requests']}, {w['input_len']}, {w['output_len']}"),
            ("requests at once, mean", f"{r['steady']['concurrency']:.0f}"),
            ("output tokens/s", f"{r['throughput']['output_tokens_per_second']:.0f}"),
            ("time to the first token, median, p99", f"{ms['ttft']['median']:.1f} ms, {ms['ttft']['p99']:.1f} ms"),
            ("inter-token latency, median, p99, ratio", f"{ms['itl']['median']:.2f} ms, {ms['itl']['p99']:.2f} ms, {number(r['itl_p99_over_median'])}"),
            ("device idle between decode steps", percent(r["idle_share"], 2)),
        ]
        out.append(f"{model(r)}\n\n" + table(("under load", "measured"), rows) + "\n" + origin(name, r))
    return "\n".join(out)


def ablation(results, device="cuda"):
    found = of_kind(results, "ablation", device)
    if not found:
        return NOT_YET
    out = []
    for name, r in found:
        rows = [(v["name"], f"{v['step_median_ms']:.3f}", f"{v['step_p99_ms']:.3f}", times(v["step_ratio"]), f"{v['end_to_end_median_ms']:.1f}",
                 times(v["end_to_end_ratio"])) for v in r["variants"]]
        w = r["workload"]
        text = f"{model(r)}, {w['batch']} requests of {w['prompt_tokens']} + {w['output_tokens']} tokens\n\n"
        text += table(("", "step, median ms", "p99 ms", "ratio", "end to end, median ms", "ratio"), rows)
        text += "".join(f"\nNot measured: {line}\n" for line in r["left_out"])
        out.append(text + "\n" + origin(name, r))
    return "\n".join(out)


def of_pair(pair, kind, step):
    """The result of a step of bench/pair_results.sh."""
    r = pair.get(f"{step}.json")
    return r if r and r["kind"] == kind else None


def ratio(over, under):
    return over / under if over and under else None


def decode_of(pair, step, batch, figure="median_ms"):
    r = of_pair(pair, "latency", step)
    return next((d[figure] for d in r["decode"] if d["batch"] == batch), None) if r else None


def prefill_of(pair, step, tokens, figure="first_token_median_ms"):
    r = of_pair(pair, "latency", step)
    return next((p[figure] for p in r["prefill"] if p["prompt_tokens"] == tokens), None) if r else None


def output_rate(pair, step):
    r = of_pair(pair, "throughput", step)
    return r["throughput"]["output_tokens_per_second"] if r else None


FUSED_SUM_SECONDS = 2.4e-6  # what a small fused all-reduce is reckoned at


def huge_floor_ms(pair):
    """A rank's weights over its read bandwidth, and two sums a layer."""
    r = of_pair(pair, "latency", "70b-tp2")
    if not r or not r["ceilings"]["read_bytes_per_second"]:
        return None
    reading = r["model"]["streamed_weight_bytes"] / r["ceilings"]["read_bytes_per_second"]  # of both GPUs together
    return 1e3 * (reading + 2 * r["model"]["shape"]["num_layers"] * FUSED_SUM_SECONDS)


def seconds(x):
    return "-" if x is None else f"{x:.2f} s"


def median_kill(pair, step):
    r = of_pair(pair, "kills", step)
    return r["median_seconds"] if r else None


def pair_speed(pair):
    """The goals of two GPUs beside what was measured."""
    rows = [
        ("8B, batch 1, step of two GPUs over that of one", times(ratio(decode_of(pair, "8b-tp2", 1), decode_of(pair, "8b-tp1", 1))), "0.65 x", "0.56 x"),
        ("70B, batch 1, step of two GPUs over its floor", times(ratio(decode_of(pair, "70b-tp2", 1), huge_floor_ms(pair))), "1.20 x", "1.08 x"),
        ("8B, prompt of 8192, speed-up of two GPUs over one", times(ratio(prefill_of(pair, "8b-tp1", 8192), prefill_of(pair, "8b-tp2", 8192))), "1.60 x", "1.85 x"),
        ("8B, throughput of two replicas over one", times(ratio(output_rate(pair, "throughput-dp2"), output_rate(pair, "throughput-dp1"))), "1.90 x", "1.98 x"),
        ("70B, a worker killed under load, weights kept: to the next token", seconds(median_kill(pair, "kills-kept")), "5 s", "1.5 s"),
        ("the same, nothing kept", seconds(median_kill(pair, "kills-cold")), "", ""),
    ]
    if all(row[1] == "-" for row in rows):
        return NOT_YET
    return table(("", "measured", "at least", "hoped for"), rows)


def pair_decode(pair):
    """Steps of one GPU and of two, beside each other."""
    out = []
    for name, one, two in (("8B", "8b-tp1", "8b-tp2"), ("70B", None, "70b-tp2")):
        r = of_pair(pair, "latency", two)
        if not r:
            continue
        alone = of_pair(pair, "latency", one) if one else None
        rows = []
        for d in r["decode"]:
            before = decode_of(pair, one, d["batch"]) if one else None
            rows.append((f"step, batch {d['batch']}", number(before, "{:.3f}"), f"{d['median_ms']:.3f}", f"{d['p99_ms']:.3f}", times(ratio(d["median_ms"], before)),
                         times(d["over_floor"]), percent(d["idle_share"], 2)))
        for p in r["prefill"]:
            before, now = prefill_of(pair, one, p["prompt_tokens"]) if one else None, p["first_token_median_ms"]
            rows.append((f"prompt of {p['prompt_tokens']}", number(before), number(now), f"{p['first_token_p99_ms']:.2f}", times(ratio(now, before)),
                         f"{percent(p['matmul_share'])} of the peak", ""))
        head = (name, "one GPU, ms", "two, median ms", "p99 ms", "of one's", "over the floor of both", "idle")
        origins = "\n".join(origin(f"pair/{step}.json", result) for step, result in ((one, alone), (two, r)) if result)
        out.append(table(head, rows) + "\n" + origins)
    return "\n".join(out) or NOT_YET


def pair_replicas(pair):
    found = [(replicas, of_pair(pair, "throughput", f"throughput-dp{replicas}")) for replicas in (1, 2)]
    rows = [(str(replicas), str(r["workload"]["requests"]), f"{r['throughput']['output_tokens_per_second']:.0f}",
             f"{r['latency_ms']['itl']['median']:.2f} ms", f"{r['latency_ms']['itl']['p99']:.2f} ms", percent(r["idle_share"], 2)) for replicas, r in found if r]
    if not rows:
        return NOT_YET
    head = ("replicas", "requests, all at once", "output tokens/s", "inter-token latency, median", "p99", "devices idle between decode steps")
    return table(head, rows) + "\n" + "\n".join(origin(f"pair/throughput-dp{replicas}.json", r) for replicas, r in found if r)


def pair_kills(pair):
    found = [(name, step, of_pair(pair, "kills", step)) for name, step in (("kept", "kills-kept"), ("made anew", "kills-cold"))]
    rows = [(name, str(len(r["seconds"])), seconds(r["median_seconds"]), seconds(r["longest_seconds"]), str(r["requests_lost"]), seconds(r["ready_seconds"]))
            for name, _, r in found if r]
    if not rows:
        return NOT_YET
    head = ("weights", "kills", "next token after: median", "longest", "requests lost", "first start to ready")
    return table(head, rows) + "\n" + "\n".join(origin(f"pair/{step}.json", r) for _, step, r in found if r)


TABLES = {"speed": speed, "ceilings": ceilings, "latency": latency, "throughput": throughput, "ablation": ablation}
PAIR_TABLES = {"pair-speed": pair_speed, "pair-decode": pair_decode, "pair-replicas": pair_replicas, "pair-kills": pair_kills}


def fill(page, results, pair, scaling):
    def replaced(match):
        if match[2] in TABLES:
            return match[1] + TABLES[match[2]](results) + match[4]
        if match[2] in PAIR_TABLES:
            return match[1] + PAIR_TABLES[match[2]](pair) + match[4]
        if match[2] in SCALING_TABLES:
            return match[1] + SCALING_TABLES[match[2]](scaling) + match[4]
        sys.exit(f"no table is named {match[2]}; there are {', '.join([*TABLES, *PAIR_TABLES, *SCALING_TABLES])}")

    return MARKED.sub(replaced, page)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/performance.md")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "docs/results")
    options = parser.parse_args()
    page = options.page.read_text(encoding="utf-8")
    wanted = fill(page, load(options.results), load(options.results / "pair"), load_scaling(options.results))
    if not options.check:
        options.page.write_text(wanted, encoding="utf-8")
        return 0
    sys.stdout.writelines(difflib.unified_diff(page.splitlines(True), wanted.splitlines(True), str(options.page), "what the results say"))
    return 0 if page == wanted else 1


if __name__ == "__main__":
    sys.exit(main())
