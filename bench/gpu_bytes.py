#!/usr/bin/env python3
"""What the kernels of one decode step really read and write in device memory, beside what the floor counts, by NVIDIA's ncu.

usage: gpu_bytes.py TROUPE MODEL [--batch 1,8,32,128] [--context 1024] [--ncu NCU] [--raw FOLDER]

MODEL may be a config alone (bench/configs/..): weights are dummies. Every kernel of a step that decodes the whole batch is measured by itself,
with the caches emptied before it, so times are longer than in a step: what counts are the bytes. Prints a table in Markdown per batch size.
"""
import argparse
import collections
import csv
import io
import json
import pathlib
import re
import subprocess
import sys
import tempfile

METRICS = {
    "dram__bytes_read.sum": "read",
    "dram__bytes_write.sum": "written",
    "gpu__time_duration.sum": "ns",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "peak",
}
UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "nsecond": 1, "ns": 1, "usecond": 1e3, "us": 1e3, "msecond": 1e6, "ms": 1e6,
         "%": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9}


USES = (("qkv_epilogue", "q, k, v"), ("swiglu_epilogue", "gate and up"), (", float>", "head"), ("logits_epilogue", "head"),
        ("store_epilogue", "output and down"))


def short(name):
    """A kernel's own name out of a demangled one, and which products it computed."""
    base = re.sub(r"\(.*", "", re.sub(r"\(anonymous namespace\)::|<?unnamed>::", "", name))
    plain = re.sub(r"<.*", "", re.sub(r"^void ", "", base)).split("::")[-1]
    use = next((f": {what}" for key, what in USES if key in base), "") if "_epilogue" in base else ""
    return plain + use


def kernels_of(text):
    """The kernels in the order of their launches: name -> figures."""
    start = text.index('"ID"')
    rows = collections.OrderedDict()
    for row in csv.DictReader(io.StringIO(text[start:])):
        kind = METRICS.get(row["Metric Name"])
        if kind is None:
            continue
        value = float(row["Metric Value"].replace(",", "")) * UNITS[row["Metric Unit"]]
        rows.setdefault(row["ID"], {"name": row["Kernel Name"]})[kind] = value
    return list(rows.values())


def one_step(kernels):
    """Up to where the first kernel comes again behind the last product: the head runs once in a step."""
    first = kernels[0]["name"]
    for i, kernel in enumerate(kernels[1:], 1):
        if kernel["name"] == first and i > 20:
            return kernels[:i]
    return kernels


def measure(o, batch):
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder) / "result.json"
        command = [o.ncu, "--csv", "--print-units", "base", "--clock-control", "none", "--nvtx", "--nvtx-include",
                   "troupe decode/", "--launch-count", "500", "--metrics", ",".join(METRICS), o.troupe, "bench", "latency", o.model,
                   "--load-format", "dummy", "--device", "cuda", "--batch-size", str(batch), "--context", str(o.context), "--steps", "4",
                   "--prompt-len", "0", "--repeats", "1", "--enforce-eager", "--json", str(result)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if o.raw:
            (pathlib.Path(o.raw) / f"ncu-{batch}.csv").write_text(run.stdout, encoding="utf-8")
        if run.returncode != 0 or '"ID"' not in run.stdout:
            sys.exit(f"batch {batch}: ncu ended with {run.returncode}: {run.stdout[-2000:]}{run.stderr[-2000:]}")
        return one_step(kernels_of(run.stdout)), json.loads(result.read_text(encoding="utf-8"))


def table(batch, kernels, result):
    decode = result["decode"][0]
    counted = decode["floor_ms"] * 1e-3 * result["ceilings"]["read_bytes_per_second"]
    groups = collections.OrderedDict()
    for kernel in kernels:
        group = groups.setdefault(short(kernel["name"]), {"count": 0, "read": 0.0, "written": 0.0, "ns": 0.0, "peak": 0.0})
        group["count"] += 1
        for key in ("read", "written", "ns"):
            group[key] += kernel[key]
        group["peak"] += kernel["peak"] * kernel["ns"]
    print(f"\nbatch {batch}, context {decode['context']:.0f}\n")
    print("| kernel | launches | read MB | written MB | alone, us | of the memory's peak |\n|---|---|---|---|---|---|")
    for name, g in sorted(groups.items(), key=lambda item: -item[1]["read"]):
        print(f"| {name} | {g['count']} | {g['read'] / 1e6:.1f} | {g['written'] / 1e6:.1f} | {g['ns'] / 1e3 / g['count']:.1f} |"
              f" {g['peak'] / g['ns']:.0f}% |")
    read, written = (sum(g[key] for g in groups.values()) for key in ("read", "written"))
    print(f"| the step | {len(kernels)} | {read / 1e6:.1f} | {written / 1e6:.1f} | | |")
    print(f"\nCounted by the floor: {counted / 1e6:.1f} MB; read {read / counted:.3f} times that, read and written {(read + written) / counted:.3f}.")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("troupe")
    parser.add_argument("model")
    parser.add_argument("--batch", default="1,8,32,128")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--raw", help="folder for ncu's own output")
    o = parser.parse_args()
    for batch in o.batch.split(","):
        table(int(batch), *measure(o, int(batch)))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
