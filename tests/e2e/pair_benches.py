#!/usr/bin/env python3
"""The runs of bench/pair_results.sh with a tiny model on CPU devices: every figure of the page's tables is there, and no request is lost.

usage: pair_benches.py TROUPE
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LATENCY = {"8b-tp1": 1, "8b-tp2": 2, "70b-tp2": 2}
STEPS = (*LATENCY, "throughput-dp1", "throughput-dp2", "throughput-pp2", "kills-kept", "kills-cold")


def check_figures(results):
    for step, ranks in LATENCY.items():
        r = results[step]
        assert r["parallel"] == {"tp": ranks, "pp": 1, "dp": 1}, r["parallel"]
        assert [d["batch"] for d in r["decode"]] == [1, 4] and all(d["median_ms"] > 0 for d in r["decode"])
        assert r["prefill"][0]["prompt_tokens"] == 96 and r["prefill"][0]["first_token_median_ms"] > 0
    for step, replicas, stages in (("throughput-dp1", 1, 1), ("throughput-dp2", 2, 1), ("throughput-pp2", 1, 2)):
        r = results[step]
        assert r["parallel"] == {"tp": 1, "pp": stages, "dp": replicas}
        assert r["requests"]["completed"] == 8 * replicas * stages and r["requests"]["failed"] == 0, r["requests"]
    for step, kills, mapped in (("kills-kept", 2, 4), ("kills-cold", 1, 0)):
        r = results[step]
        assert r["requests_lost"] == 0 and len(r["seconds"]) == kills, r
        assert all(0 < s < 60 for s in r["seconds"]) and 0 < r["median_seconds"] <= r["longest_seconds"], r
        assert r["weights_mapped"] == mapped, r
        for stages in r["stages"]:  # of ranks that start side by side, each from its last
            order = [stages[what] for what in ("noticed", "started", "process", "place", "model", "met", "weights", "ready", "up", "token")]
            assert order[0] > 0 and order == sorted(order), stages
        assert r["machine"]["cores"] >= 1 and r["date"].endswith("Z") and "--tp 2" in r["command"], r


def check_tables(folder):
    page = folder / "page.md"
    names = ("pair-speed", "pair-decode", "pair-replicas", "pair-kills")
    page.write_text("".join(f"<!-- results: {name} -->\n<!-- end -->\n" for name in names))
    made = subprocess.run([sys.executable, ROOT / "bench/make_tables.py", "--page", page, "--results", folder], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    text = page.read_text()
    assert "Not measured yet" not in text, text
    for line in ("8B, batch 1, step of two GPUs over that of one", "8B, throughput of two replicas over one", "the same, nothing kept"):
        row = next(found for found in text.splitlines() if line in found)
        assert "| - |" not in row, row


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = {**os.environ, "TINY": "1", "DEVICE": "cpu"}
        command = [ROOT / "bench/pair_results.sh", program, folder / "pair"]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-4000:]
        results = {step: json.loads((folder / "pair" / f"{step}.json").read_text()) for step in STEPS}
        check_figures(results)
        check_tables(folder)
        broken = subprocess.run([ROOT / "bench/pair_results.sh", "/bin/false", folder / "none", "8b-tp2"], env=environment, capture_output=True, text=True, check=False)
        assert broken.returncode == 1 and "failed: 8b-tp2" in broken.stdout, broken
    print("two devices are measured")


if __name__ == "__main__":
    main()
