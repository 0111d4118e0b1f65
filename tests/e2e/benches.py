#!/usr/bin/env python3
"""The benches of bench/gpu_results.sh with a tiny model on the CPU: each result has its figures, `bench regress` takes them, and
bench/make_tables.py makes tables of them.

usage: benches.py TROUPE
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ("latency-8b", "latency-1b", "throughput-8b", "ablation-8b")


def positive(result, *path):
    for key in path:
        result = result[key]
    assert isinstance(result, (int, float)) and result > 0, (path, result)
    return result


def check_head(name, r):
    assert r["kind"] == name.split("-")[0] and r["device"] == "cpu", r
    assert r["command"].startswith("troupe bench ") and r["version"] and r["date"].endswith("Z")
    assert r["machine"]["cpu"] is not None and r["machine"]["gpu"] is None
    positive(r, "ceilings", "read_bytes_per_second")
    positive(r, "model", "streamed_weight_bytes")
    assert r["model"]["name"] == "tiny"


def check_figures(results):
    decode = results["latency-8b"]["decode"]
    assert [d["batch"] for d in decode] == [1, 4]
    for d in decode:
        assert abs(d["context"] - 48) < 8, d
        assert positive(d, "over_floor") < 1e4 and positive(d, "median_ms") <= positive(d, "p99_ms")
        assert 0 <= d["idle_share"] < 1 and d["steps"] >= 8
    assert positive(results["latency-8b"]["prefill"][0], "first_token_median_ms") < 60_000
    assert results["latency-1b"]["prefill"] == []
    load = results["throughput-8b"]
    assert load["requests"]["completed"] == 12 and load["requests"]["failed"] == 0, load["requests"]
    assert load["requests"]["prompt_tokens"] == 12 * 16
    positive(load, "itl_p99_over_median")
    for name in ("latency-8b", "throughput-8b"):
        assert 0 < results[name]["start_to_first_token_seconds"] < 120
    variants = results["ablation-8b"]["variants"]
    assert [v["name"] for v in variants] == ["full", "one step ahead off"], variants
    assert variants[0]["step_ratio"] == 1 and positive(variants[1], "end_to_end_ratio")


def check_regress(program, folder):
    for name in RESULTS:
        path = folder / f"{name}.json"
        same = subprocess.run([program, "bench", "regress", path, path], capture_output=True, text=True, check=False)
        assert same.returncode == 0 and "no loss" in same.stdout, (name, same)
    worse = json.loads((folder / "latency-8b.json").read_text())
    worse["decode"][0]["over_floor"] *= 1.2
    (folder / "worse.json").write_text(json.dumps(worse))
    lost = subprocess.run([program, "bench", "regress", folder / "latency-8b.json", folder / "worse.json"], capture_output=True, text=True, check=False)
    assert lost.returncode == 1 and "LOSS" in lost.stdout, lost
    for bad in (folder / "missing.json", folder / "log.txt"):
        done = subprocess.run([program, "bench", "regress", bad, bad], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and bad.name in done.stderr, done


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = {**os.environ, "TINY": "1", "DEVICE": "cpu"}
        ran = subprocess.run([ROOT / "bench/gpu_results.sh", program, folder], env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
        results = {name: json.loads((folder / f"{name}.json").read_text()) for name in RESULTS}
        for name, result in results.items():
            check_head(name, result)
        check_figures(results)
        check_regress(program, folder)
        trace = json.loads((folder / "steps.trace").read_text())
        assert any(e["name"] == "decode" for e in trace["traceEvents"]) and trace["otherData"]["decode_steps"] > 8, trace["otherData"]
        broken = subprocess.run([ROOT / "bench/gpu_results.sh", "/bin/false", folder, "latency-1b"], env=environment, capture_output=True, text=True, check=False)
        assert broken.returncode == 1 and "failed: latency-1b" in broken.stdout, broken
    print("the benches measure")


if __name__ == "__main__":
    main()
