#!/usr/bin/env python3
"""bench/make_tables.py on made-up results: right figures in right rows, and a page that was edited by hand is noticed.

usage: make_tables_test.py ROOT
"""
import json
import pathlib
import subprocess
import sys
import tempfile

PAGE = """# Page
kept before
<!-- results: speed -->
old
<!-- end -->
between
<!-- results: ceilings -->
<!-- end -->
<!-- results: latency -->
<!-- end -->
<!-- results: throughput -->
<!-- end -->
<!-- results: ablation -->
<!-- end -->
<!-- results: pair-speed -->
<!-- end -->
<!-- results: pair-decode -->
<!-- end -->
<!-- results: pair-replicas -->
<!-- end -->
<!-- results: pair-kills -->
<!-- end -->
kept behind
"""
HEAD = {"version": "1", "date": "2026-01-02T03:04:05Z", "command": "troupe bench it", "device": "cuda",
        "machine": {"cpu": "x", "cores": 8, "gpu": "A GPU", "driver": "1.2", "cuda": "3.4"}}


def results():
    decode = [{"batch": b, "context": 1024.2, "median_ms": 3.5 + b, "p99_ms": 4.5 + b, "floor_ms": 3.0, "over_floor": over,
               "tokens_per_second": 1000.4, "idle_share": 0.001} for b, over in ((1, 1.111), (8, 1.222), (32, 1.333), (128, 1.444))]
    prefill = [{"prompt_tokens": 8192, "first_token_median_ms": 200.0, "first_token_p99_ms": 210.0, "tokens_per_second": 40960.0, "matmul_share": 0.654}]
    latency = {**HEAD, "kind": "latency", "model": {"name": "llama-3.1-8b"}, "start_to_first_token_seconds": 4.56, "decode": decode, "prefill": prefill}
    small = {**latency, "model": {"name": "llama-3.2-1b"}, "decode": [{**decode[0], "over_floor": 1.277}], "prefill": []}
    on_cpu = {**latency, "device": "cpu", "decode": [{**decode[0], "over_floor": 9.99}]}
    ms = {"median": 9.0, "p99": 12.0}
    load = {**HEAD, "kind": "throughput", "model": {"name": "llama-3.1-8b"}, "workload": {"requests": 7, "input_len": "512", "output_len": "1024"},
            "steady": {"concurrency": 127.6}, "throughput": {"output_tokens_per_second": 12345.6}, "latency_ms": {"ttft": ms, "itl": ms},
            "itl_p99_over_median": 1.337, "idle_share": 0.0042, "start_to_first_token_seconds": 3.21}
    variant = {"step_median_ms": 4.0, "step_p99_ms": 5.0, "end_to_end_median_ms": 100.0}
    ablation = {**HEAD, "kind": "ablation", "model": {"name": "llama-3.1-8b"}, "workload": {"batch": 8, "prompt_tokens": 512, "output_tokens": 128},
                "variants": [{**variant, "name": "full", "step_ratio": 1.0, "end_to_end_ratio": 1.0},
                             {**variant, "name": "unfused", "step_ratio": 1.481, "end_to_end_ratio": 1.392}], "left_out": ["graphs off: no memory"]}
    seconds = {f"launch_{k}_seconds": 1e-6 for k in ("eager", "graph", "overlapped")}
    rates = {"read_bytes_per_second": 4.567e12, "copy_bytes_per_second": 4e12, "matmul_flops_per_second": 8e14, "pinned_up_bytes_per_second": 5e10,
             "pinned_down_bytes_per_second": 5e10, "small_download_seconds": 7e-6}
    return {"a.json": latency, "b.json": small, "c.json": on_cpu, "d.json": load, "e.json": ablation,
            "f.json": {**HEAD, "kind": "ceilings", "ceilings": {**seconds, **rates}}}


def pair_results():
    def latency(name, step, first_token, ceilings):
        decode = {"batch": 1, "context": 1024.2, "median_ms": step, "p99_ms": step + 1, "over_floor": 1.2, "idle_share": 0.001}
        prefill = {"prompt_tokens": 8192, "first_token_median_ms": first_token, "first_token_p99_ms": 210.0, "matmul_share": 0.654}
        return {**HEAD, "kind": "latency", "model": {"name": name, "streamed_weight_bytes": 14e10, "shape": {"num_layers": 80}}, "ceilings": ceilings,
                "decode": [decode], "prefill": [prefill]}

    def throughput(rate):
        return {**HEAD, "kind": "throughput", "workload": {"requests": 7}, "throughput": {"output_tokens_per_second": rate},
                "latency_ms": {"itl": {"median": 9.0, "p99": 12.0}}, "idle_share": 0.0042}

    def kills(median):
        return {**HEAD, "kind": "kills", "seconds": [1.0, median, 3.0], "median_seconds": median, "longest_seconds": 3.0, "requests_lost": 0,
                "ready_seconds": 7.25}

    both = {"read_bytes_per_second": 10e12}
    return {"8b-tp1.json": latency("llama-3.1-8b", 4.0, 200.0, both), "8b-tp2.json": latency("llama-3.1-8b", 2.5, 125.0, both),
            "70b-tp2.json": latency("llama-3.1-70b", 17.2608, 900.0, both), "throughput-dp1.json": throughput(10000.0),
            "throughput-dp2.json": throughput(19500.0), "kills-kept.json": kills(1.25), "kills-cold.json": kills(2.75)}


def check_pair(text):
    assert row(text, "8B, batch 1, step of two GPUs over that of one")[1] == "0.625 x"
    assert row(text, "70B, batch 1, step of two GPUs over its floor")[1] == "1.200 x"  # 14 ms of reading, 160 sums of 2.4 us
    assert row(text, "8B, prompt of 8192, speed-up of two GPUs over one")[1] == "1.600 x"
    assert row(text, "8B, throughput of two replicas over one")[1] == "1.950 x"
    assert row(text, "70B, a worker killed under load, weights kept: to the next token")[1] == "1.25 s"
    assert row(text, "the same, nothing kept")[1] == "2.75 s"
    steps = [line for line in text.splitlines() if line.startswith("| step, batch 1 |")]
    assert [line.split("|")[2:6] for line in steps] == [[" 4.000 ", " 2.500 ", " 3.500 ", " 0.625 x "], [" - ", " 17.261 ", " 18.261 ", " - "]], steps
    assert row(text, "made anew")[1:] == ["3", "2.75 s", "3.00 s", "0", "7.25 s"]


def row(page, beginning):
    found = [line for line in page.splitlines() if line.startswith(f"| {beginning} |")]
    assert len(found) == 1, (beginning, found)
    return [cell.strip() for cell in found[0].strip("|").split("|")]


def main():
    root = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        page = folder / "page.md"
        page.write_text(PAGE)
        (folder / "results").mkdir()

        def make(*flags):
            command = [sys.executable, root / "bench/make_tables.py", "--page", page, "--results", folder / "results", *flags]
            return subprocess.run(command, capture_output=True, text=True, check=False)

        assert make().returncode == 0
        assert page.read_text().count("Not measured yet.") == 9
        for file, result in results().items():
            (folder / "results" / file).write_text(json.dumps(result))
        (folder / "results/pair").mkdir()
        for file, result in pair_results().items():
            (folder / "results/pair" / file).write_text(json.dumps(result))
        assert make("--check").returncode == 1
        assert make().returncode == 0
        check_pair(page.read_text())
        text = page.read_text()
        assert text.startswith("# Page\nkept before\n") and text.endswith("kept behind\n") and "\nbetween\n" in text and "\nold\n" not in text
        assert row(text, "decode step, batch 32, over the floor")[1] == "1.333 x"
        assert row(text, "decode step of the 1B model, batch 1, over the floor")[1] == "1.277 x"
        assert row(text, "prefill of 8192 tokens, of the matrix product's peak")[1] == "65.4%"
        assert row(text, "GPU idle between decode steps under load")[1] == "0.42%"
        assert row(text, "start to first token")[1] == "4.6 s"
        assert row(text, "start to first token, whole serving side, started later")[1] == "3.2 s"
        assert row(text, "p99 / median of inter-token latency under load")[1] == "1.34"
        assert row(text, "unfused")[3] == "1.481 x"
        assert row(text, "reading")[1] == "4.567 TB/s"
        assert "9.99" not in text, "a CPU's figures stand in a GPU's table"
        assert "graphs off: no memory" in text and "driver 1.2, CUDA 3.4; 2026-01-02" in text
        assert make("--check").returncode == 0
        page.write_text(text.replace("1.333 x", "1.033 x"))
        edited = make("--check")
        assert edited.returncode == 1 and "1.033 x" in edited.stdout
        (folder / "results" / "g.json").write_text("{}")
        assert "g.json" in make().stderr
    print("tables say what the results say")


if __name__ == "__main__":
    main()
