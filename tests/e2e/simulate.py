#!/usr/bin/env python3
"""troupe bench calibrate, then troupe simulate on the table that it wrote: with the real scheduler and without, the same fleet; and that
bench/compare_simulator.py compares (not how well: the machine is not quiet here).

usage: simulate.py TROUPE MODEL
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    troupe, model = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        table, plot = pathlib.Path(folder, "table.json"), pathlib.Path(folder, "plot.svg")
        limits = ["--max-num-seqs", "4", "--max-num-batched-tokens", "32", "--max-model-len", "512", "--kv-cache-memory", "64MiB"]
        subprocess.run([troupe, "bench", "calibrate", model, *limits, "--seconds", "1", "-o", table], check=True)
        measured = json.loads(table.read_text())
        assert measured["limits"]["max_num_seqs"] == 4 and measured["decode"]["rows"] == [1, 2, 3, 4], measured
        prefill = measured["prefill"]
        assert prefill["tokens"] == [1, 2, 4, 8, 16, 32]
        assert prefill["ns"][-1] > 2 * prefill["ns"][0] > 0, "32 tokens cost more than one"

        serving = measured["serving"]
        assert 0 < serving["request_ns"] < 1e9 and 0 <= serving["step_ns"] < 1e9 and 0 <= serving["row_ns"] < 1e9, serving

        def simulate(*flags):
            load = ["--workload", "random", "--input-len", "8:64", "--output-len", "1:32", "--rate", "2", "--seconds", "30"]
            command = [troupe, "simulate", "--device-table", table, "--nodes", "1,2", "--gpus-per-node", "2", *load, "--json", "-", *flags]
            return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["points"]

        fast, exact = simulate("--svg", plot), simulate("--exact")
        for one, other in zip(fast, exact, strict=True):
            assert one["requests_finished"] == one["requests_offered"] == other["requests_finished"] > 0, (one, other)
            for figure in ("output_tokens", "requests_refused", "preemptions"):
                assert one[figure] == other[figure], (figure, one, other)
            assert abs(one["ttft_ms"]["mean"] / other["ttft_ms"]["mean"] - 1) < 1e-6, (one, other)
        assert xml.parse(plot).getroot().tag.endswith("svg")

        refused = subprocess.run([troupe, "simulate", "--device-table", plot], capture_output=True, text=True)
        assert refused.returncode == 1 and str(plot) in refused.stderr, refused
    loads = ["--loads", "8:16:4:8", "20:8-40:1-8:16", "--rounds", "2", "--calibrate-seconds", "1"]
    compare = [ROOT / "bench/compare_simulator.py", troupe, model, *loads, "--steady", "9", "--tolerance", "99", "--", *limits]
    done = subprocess.run(compare, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.count("median") == 2 and "all within" in done.stdout, done
    print("calibrated, simulated both ways, plotted, compared")


if __name__ == "__main__":
    main()
