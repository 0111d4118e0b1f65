#!/usr/bin/env python3
"""bench/make_tables.py and bench/scaling_plot.py on invented results of bench/scaling_results.sh: efficiencies, errors of predictions, shares.

usage: scaling_test.py ROOT
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.dom.minidom

HEAD = {"version": "1", "date": "2026-01-02T03:04:05Z", "command": "troupe bench it", "device": "cuda",
        "machine": {"cpu": "A CPU", "cores": 4, "gpu": "A GPU", "driver": "580", "cuda": "13.0"}}
PAGE = "# Page\n<!-- results: scaling -->\nold\n<!-- end -->\n<!-- results: scaling-cpu -->\nold\n<!-- end -->\nbehind\n"


def latency(size, tp, step, first_token, pp=1, device="cuda", split=None, others=()):
    decode = {"batch": 8, "context": 1024.0, "median_ms": step, "p99_ms": step + 1, "tokens_per_second": 8e3 / step, "over_floor": 1.25, "idle_share": 0,
              "split": split or {"compute_ms": step, "collective_wait_ms": 0.0, "collective_move_ms": 0.0, "groups_ms": {}}}
    prefill = {"prompt_tokens": 8192, "first_token_median_ms": first_token, "tokens_per_second": 8.192e6 / first_token, "matmul_share": 0.6}
    return {**HEAD, "kind": "latency", "device": device, "model": {"name": f"llama-3.1-{size}"}, "parallel": {"tp": tp, "pp": pp, "dp": 1},
            "decode": [decode], "prefill": [prefill], "other_ranks": list(others)}


def serving(dp, rate, goodput):
    part = {"throughput": {"output_tokens_per_second": rate, "requests_per_second": rate / 100}, "requests": {"failed": 0},
            "latency_ms": {"ttft": {"median": 40.0, "p99": 90.0}, "itl": {"median": 7.0, "p99": 14.0}}, "goodput": {"requests_per_second": goodput}}
    return {**HEAD, "kind": "serving", "model": {"name": "llama-3.1-8b"}, "parallel": {"tp": 1, "pp": 1, "dp": dp}, "arriving": part, "at_once": part}


def split_of(total):
    return {"compute_ms": 4.0, "collective_wait_ms": 0.0, "collective_move_ms": total, "groups_ms": {}}


def gpu_results():
    rank_1 = {"rank": 1, "decode": [split_of(0.4)], "prefill": [split_of(0.4)]}
    steps = {"8b-tp1": {"decode_ms": {"8": 3.6}, "prefill_ms": {"8192": 180.0}}, "8b-tp4": {"decode_ms": {"8": 1.2}, "prefill_ms": {"8192": 50.0}},
             "8b-dp4": {"at_once": {"output_tokens_per_second": 44000.0}, "arriving": {"goodput_requests_per_second": 90.0}}}
    return {"8b-tp1": latency("8b", 1, 4.0, 200.0), "8b-tp4": latency("8b", 4, 1.25, 62.5), "70b-tp4": latency("70b", 4, 9.0, 500.0),
            "70b-tp2-pp2": latency("70b", 2, 18.0, 900.0, pp=2), "split-8b-tp4": latency("8b", 4, 5.0, 70.0, split=split_of(1.2), others=[rank_1]),
            "8b-dp1": serving(1, 10000.0, 24.0), "8b-dp4": serving(4, 36000.0, 100.0),
            "kill-70b-tp4": {**HEAD, "kind": "kills", "seconds": [1.0, 1.25, 2.0], "noticed_seconds": [0.25, 0.125, 0.5], "median_seconds": 1.25, "longest_seconds": 2.0, "requests_lost": 0},
            "tokens": {**HEAD, "kind": "tokens", "layouts": [{"tp": 2, "pp": 1, "texts_equal": 4, "texts": 5, "characters_equal": 90, "characters": 100},
                                                          {"tp": 1, "pp": 2, "texts_equal": None, "texts": 5, "characters_equal": None, "characters": 100,
                                                           "not_run": "--pp is refused"}]},
            "ceilings": {**HEAD, "kind": "ceilings", "all_reduce": {"gpus": 4, "sizes": [
                {"bytes": 8192, "nccl_seconds": 8e-6, "own_seconds": 3e-6, "nccl_and_norm_seconds": 10e-6, "own_and_norm_seconds": 4e-6},
                {"bytes": 1 << 23, "nccl_seconds": 40e-6, "own_seconds": None, "nccl_and_norm_seconds": 50e-6, "own_and_norm_seconds": None}]}},
            "predicted": {**HEAD, "kind": "predicted", "steps": steps}}


def row(page, *cells):
    found = [line for line in page.splitlines() if all(cell in [word.strip() for word in line.split("|")] for cell in cells)]
    assert len(found) == 1, (cells, found)
    return [word.strip() for word in found[0].split("|")[1:-1]]


def check_page(text):
    assert row(text, "8", "TP 4", "1.250")[5:] == ["3.20 x", "80%", "1.25 x", "1.200", "-4%"]  # 4 ms on one GPU
    assert row(text, "8", "one", "4.000")[5:7] == ["1.00 x", "100%"]
    assert row(text, "8", "TP 4", "9.000")[5:7] == ["1.00 x", "100%"]  # the fewest GPUs that hold it
    assert row(text, "8", "TP 2 PP 2", "18.000")[5:] == ["0.50 x", "50%", "1.25 x", "-", "-"]
    assert row(text, "8192", "TP 4", "62.50")[4:] == ["3.20 x", "80%", "60.0%", "50.00", "-20%"]
    # Ranks spend 1.2 and 0.4 ms in sums: 0.4 of moving, and 0.4 of waiting in the mean.
    assert row(text, "decode, batch 8", "TP 4")[2:] == ["4.000", "3.200 (80%)", "0.400 (10%)", "0.400 (10%)"], row(text, "decode, batch 8", "TP 4")
    assert row(text, "DP 4")[1:6] == ["36000", "3.60 x", "90%", "44000", "+22%"]
    assert row(text, "DP 4")[7:] == ["100.0", "40 / 90", "7.0 / 14.0", "90.0", "-10%"]
    assert row(text, "8 KiB")[1:] == ["8.00", "3.00", "10.00", "4.00", "0.40 x", "2.7"]
    assert row(text, "8192 KiB")[1:] == ["40.00", "-", "50.00", "-", "-", "209.7"]
    assert row(text, "70b-tp4", "3")[2:] == ["0.250", "1.25", "2.00", "0"]
    assert row(text, "TP 2 PP 1")[1:] == ["4 of 5", "90%"]
    assert row(text, "TP 1 PP 2")[1:] == ["not run: --pp is refused", "-"]


def main():
    root = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        page, results, picture = folder / "page.md", folder / "results", folder / "scaling.svg"
        page.write_text(PAGE)
        waiting = {"compute_ms": 7.5, "collective_wait_ms": 0.6, "collective_move_ms": 0.4, "groups_ms": {}}
        for where, steps in (("scaling-4", gpu_results()), ("scaling-cpu", {"8b-tp2": latency("8b", 2, 7.5, 40.0, device="cpu", split=waiting)})):
            (results / where).mkdir(parents=True)
            for step, result in steps.items():
                (results / where / f"{step}.json").write_text(json.dumps(result))

        def run(script, *flags):
            words = [sys.executable, root / "bench" / script, "--results", results, *flags]
            return subprocess.run(words, capture_output=True, text=True, check=False)

        assert run("make_tables.py", "--page", page, "--check").returncode == 1
        made = run("make_tables.py", "--page", page)
        assert made.returncode == 0, made.stderr
        assert run("make_tables.py", "--page", page, "--check").returncode == 0
        gpus, cpus = page.read_text().split("<!-- end -->")[:2]
        assert "### Of 4 GPUs" in gpus and "old" not in gpus and "troupe bench it" in gpus
        check_page(gpus)
        assert "The tiny model" in cpus and row(cpus, "decode, batch 8", "TP 2")[2:4] == ["7.500", "6.500 (87%)"], cpus

        assert run("scaling_plot.py", "--svg", picture, "--check").returncode == 1
        drawn = run("scaling_plot.py", "--svg", picture)
        assert drawn.returncode == 0, drawn.stderr
        assert run("scaling_plot.py", "--svg", picture, "--check").returncode == 0
        svg = picture.read_text()
        xml.dom.minidom.parseString(svg)
        for words in ("8B, step of 8", "70B, prompt of 8192", "8B, tokens/s", "replicas"):
            assert words in svg, words
        # A speed-up of 3.2 of 4 devices: log2 of it along the height.
        heights = [float(y) for y in re.findall(r"<circle cx='420.0' cy='([\d.]+)'", svg)]
        assert any(abs(92 + 280 - 280 * 1.678 / 2 - y) < 0.2 for y in heights), heights
        (results / "scaling-4/predicted.json").unlink()
        assert run("scaling_plot.py", "--svg", picture, "--check").returncode == 1
    print("tables and the picture say what the results say")


if __name__ == "__main__":
    main()
