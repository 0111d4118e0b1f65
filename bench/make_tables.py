#!/usr/bin/env python3
"""Writes the tables of docs/performance.md that stand between markers, from the JSON files that the benches left under docs/results/.

usage: make_tables.py [--check] [--page PAGE] [--results FOLDER]

A marker is a line "<!-- results: NAME -->"; what follows, up to "<!-- end -->", is replaced. --check changes nothing and fails when the
page is not what the results say.
"""
import argparse
import difflib
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MARKED = re.compile(r"(<!-- results: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.S)
NOT_YET = "Not measured yet.\n"


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


def number(x, pattern="{:.2f}"):
    return "-" if x is None else pattern.format(x)


def times(x):
    return "-" if x is None else f"{x:.3f} x"


def percent(x, digits=1):
    return "-" if x is None else f"{100 * x:.{digits}f}%"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def origin(name, r):
    """Where a table's figures come from."""
    m = r["machine"]
    where = m.get("gpu") or f"{m['cores']} cores of {m['cpu']}"
    if m.get("gpu"):
        where += f", driver {m.get('driver') or '?'}, CUDA {m.get('cuda') or '?'}"
    return f"{where}; {r['date'][:10]}; [`{name}`](results/{name}), made by\n`{r['command']}`\n"


def model(r):
    return r["model"]["name"]


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


TABLES = {"speed": speed, "ceilings": ceilings, "latency": latency, "throughput": throughput, "ablation": ablation}


def fill(page, results):
    def replaced(match):
        if match[2] not in TABLES:
            sys.exit(f"no table is named {match[2]}; there are {', '.join(TABLES)}")
        return match[1] + TABLES[match[2]](results) + match[4]

    return MARKED.sub(replaced, page)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/performance.md")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "docs/results")
    options = parser.parse_args()
    page = options.page.read_text(encoding="utf-8")
    wanted = fill(page, load(options.results))
    if not options.check:
        options.page.write_text(wanted, encoding="utf-8")
        return 0
    sys.stdout.writelines(difflib.unified_diff(page.splitlines(True), wanted.splitlines(True), str(options.page), "what the results say"))
    return 0 if page == wanted else 1


if __name__ == "__main__":
    sys.exit(main())
