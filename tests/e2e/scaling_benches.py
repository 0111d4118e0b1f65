#!/usr/bin/env python3
"""The runs of bench/scaling_results.sh with a tiny model on CPU devices, as for four GPUs: every step leaves its figures, tokens are the same under
every layout, no request is lost; the simulator's predictions, the tables and the picture are made of them. And what it does with too little time.

usage: scaling_benches.py TROUPE
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench/scaling_results.sh"
LATENCY = {"8b-tp1": (1, 1), "8b-tp2": (2, 1), "8b-tp4": (4, 1), "70b-tp4": (4, 1), "70b-tp2-pp2": (2, 2)}
SERVING = {"8b-dp1": (1, 1), "8b-dp2": (1, 2), "70b-tp2-dp2": (2, 2)}


def check_steps(results):
    for step, (tp, pp) in LATENCY.items():
        r = results[step]
        assert r["parallel"] == {"tp": tp, "pp": pp, "dp": 1}, r["parallel"]
        assert [d["batch"] for d in r["decode"]] == [1, 4] and r["prefill"][0]["prompt_tokens"] == 96
        for figures in (*r["decode"], *r["prefill"]):
            split = figures["split"]
            assert split["compute_ms"] > 0 and (split["collective_wait_ms"] + split["collective_move_ms"] > 0) == (tp * pp > 1), split
    for step, (tp, dp) in SERVING.items():
        r = results[step]
        assert r["parallel"] == {"tp": tp, "pp": 1, "dp": dp} and r["device_restarts"] == 0
        for part in ("arriving", "at_once"):
            assert r[part]["requests"]["failed"] == 0 and r[part]["requests"]["completed"] >= 6 * dp, r[part]["requests"]
            assert len(r[part]["trace_csv"].splitlines()) == 1 + r[part]["requests"]["completed"]
            assert "requests_per_second" in r[part]["goodput"]
    kills = results["kill-70b-tp4"]
    assert kills["requests_lost"] == 0 and len(kills["seconds"]) == 1 and 0 < kills["noticed_seconds"][0] < kills["seconds"][0], kills
    layouts = results["tokens"]["layouts"]
    assert [(row["tp"], row["pp"]) for row in layouts] == [(2, 1), (4, 1), (1, 2), (2, 2)]
    assert all(row["texts_equal"] == row["texts"] == 5 and row["characters"] > 100 for row in layouts), layouts


def check_predictions(results):
    steps = results["predicted"]["steps"]
    assert sorted(steps) == ["8b-dp1", "8b-dp2", "8b-dp4", "8b-tp1"], steps  # a CPU's table knows one device
    for figures in (*results["8b-tp1"]["decode"],):
        guess = steps["8b-tp1"]["decode_ms"][str(figures["batch"])]
        assert 0.05 < guess / figures["median_ms"] < 20, (guess, figures["median_ms"])
    assert steps["8b-dp2"]["at_once"]["output_tokens_per_second"] > 0


def check_pages(folder):
    page = folder / "page.md"
    page.write_text("<!-- results: scaling-cpu -->\n<!-- end -->\n<!-- results: scaling -->\n<!-- end -->\n")
    shutil.copytree(folder / "scaling-cpu", folder / "scaling-4")  # as if they were of GPUs
    made = subprocess.run([sys.executable, ROOT / "bench/make_tables.py", "--page", page, "--results", folder], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    text = page.read_text()
    cpus, gpus = text.split("<!-- end -->")[:2]
    for words in ("| decode, batch 4 | TP 2 |", "| TP 4 PP 1 | 5 of 5 | 100% |", "| 70b-tp4 | 1 |"):
        assert words in cpus and words.replace("| decode, batch 4 | TP 2 |", "") in gpus, (words, text)
    for words in ("| 1 | TP 4 |", "| 96 | TP 2 PP 2 |", "| DP 2 |"):
        assert words in gpus and words not in cpus, (words, text)
    drawn = subprocess.run([sys.executable, ROOT / "bench/scaling_plot.py", "--results", folder, "--svg", folder / "scaling.svg"], capture_output=True, text=True, check=False)
    assert drawn.returncode == 0, drawn.stderr
    assert "8B, step of 1" in (folder / "scaling.svg").read_text()


def main():
    program = sys.argv[1]
    environment = {**os.environ, "TINY": "1", "DEVICE": "cpu"}

    def run(*words):
        return subprocess.run([SCRIPT, *words], env=environment, capture_output=True, text=True, check=False)

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        ran = run(program, folder / "scaling-cpu", "--gpus", "4", "--seconds", "400")
        assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-4000:]
        results = {path.stem: json.loads(path.read_text()) for path in (folder / "scaling-cpu").glob("*.json")}
        check_steps(results)
        check_predictions(results)
        check_pages(folder)
        late = run(program, folder / "late", "--gpus", "2", "--seconds", "3", "8b-tp1", "kill-70b-tp2")
        assert "kill-70b-tp2: not begun" in late.stdout and "for another call: 8b-tp1 kill-70b-tp2" in late.stdout, late.stdout
        broken = run("/bin/false", folder / "none", "--gpus", "2", "8b-tp2")
        assert broken.returncode == 1 and "failed: 8b-tp2" in broken.stdout, broken
        unknown = run(program, folder / "none", "--gpus", "2", "--plan", "8b-tp64")
        assert unknown.returncode == 1 and "no step is named 8b-tp64" in unknown.stdout, unknown
        assert run(program, folder / "none", "--gpus", "3").returncode == 2
    print("scaling is measured")


if __name__ == "__main__":
    main()
