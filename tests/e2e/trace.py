#!/usr/bin/env python3
"""--trace: what serve, run and the benches write is a trace that viewers can read, also after SIGTERM.

usage: trace.py TROUPE MODEL
"""
import collections
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from server import Server

STAGES = ("prepare", "compute", "deliver")


def read(path):
    """Spans by track, other events by kind, and the summary. Checks what the format asks of every event."""
    whole = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    tracks, out = {}, collections.defaultdict(list)
    for event in whole["traceEvents"]:
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                tracks[event["tid"]] = event["args"]["name"]
            continue
        assert event["ts"] >= 0 and event["name"], event
        if event["ph"] == "X":
            assert event["dur"] >= 0, event
            out[tracks[event["tid"]]].append(event)
        else:
            assert event["ph"] in "benCi", event
            out[event["ph"]].append(event)
    return out, whole["otherData"]


def check_steps(trace):
    assert len(trace["compute"]) > 3, len(trace["compute"])
    assert len({len(trace[stage]) for stage in STAGES}) == 1
    for before, after in zip(trace["compute"], trace["compute"][1:]):
        assert before["args"]["step"] + 1 == after["args"]["step"], (before, after)
        assert before["ts"] + before["dur"] <= after["ts"] + 0.01, "the CPU computes one step at a time"
    assert any(e["args"]["decode_rows"] for e in trace["compute"]) and any(e["args"]["prefill_tokens"] for e in trace["compute"])


def check_phases(trace, requests):
    """Each of `requests`: how it must have ended. Phases open and close in order and follow one another."""
    ends = {e["id"]: e["name"] for e in trace["n"]}
    assert sorted(ends.values()) == sorted(f"finished: {how}" for how in requests), ends
    for number in ends:
        begins = {e["name"]: e["ts"] for e in trace["b"] if e["id"] == number}
        closes = {e["name"]: e["ts"] for e in trace["e"] if e["id"] == number}
        assert begins.keys() == closes.keys(), (begins, closes)
        assert {"queued", "prefill", "decode"} <= begins.keys(), begins
        assert begins["queued"] <= closes["queued"] == begins["prefill"] <= closes["prefill"] == begins["decode"] <= closes["decode"]


def serve(program, model, folder):
    path = folder / "serve.json"
    with Server(program, model, "--max-model-len", "1024", "--trace", str(path)) as server:
        body = {"prompt": "A \"quoted\" story:", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        for _ in range(2):
            server.post("/v1/completions", body)
        server.stream("/v1/completions", {**body, "max_tokens": 900}, on_event=lambda event: True)  # hangs up at the first event
        server.wait_idle()
        time.sleep(0.3)
        read(path)  # whole while the server runs
    trace, summary = read(path)
    check_steps(trace)
    check_phases(trace, ["length", "length", "cancelled"])
    assert 0 <= summary["idle_share"] < 1 and summary["decode_steps"] > 20, summary
    assert summary["events_dropped"] == 0, summary
    assert "idle" in server.text(), "the log sums up"


def serve_in_a_child(program, model, folder):
    path = folder / "child.json"
    with Server(program, model, "--max-model-len", "512", "--isolate-devices", "--trace", str(path)) as server:
        server.post("/v1/completions", {"prompt": "One", "max_tokens": 8, "ignore_eos": True})
    trace, _ = read(path)
    check_steps(trace)
    check_phases(trace, ["length"])


def serve_in_a_group(program, model, folder):
    """Each rank has a row: its part of each step, with the waiting in it."""
    path = folder / "group.json"
    with Server(program, model, "--max-model-len", "512", "--tp", "3", "--trace", str(path)) as server:
        server.post("/v1/completions", {"prompt": "One", "max_tokens": 8, "ignore_eos": True})
        assert server.metric("troupe_rank_collective_wait_seconds_total") > 0 and server.metric("troupe_collective_faults_total") == 0
    events = json.loads(path.read_text())["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    for rank in range(3):
        mine = [e for e in events if e["ph"] == "X" and rows[e["tid"]] == f"rank {rank}"]
        steps = [e for e in mine if "late_ns" in e.get("args", {})]
        waits = [e for e in mine if e["name"] == "waiting for peers (sum)"]
        assert len(steps) >= 8 and waits, (rank, mine)
        assert sum(e["dur"] for e in waits) < sum(e["dur"] for e in steps), (waits, steps)


def run_killed(program, model, folder):
    path = folder / "run.json"
    command = [program, "run", model, "1 2 3 4 5 6 7 8 9 10 11 12 13 14", "--raw", "--max-tokens", "2000", "--trace", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout.read(4)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)  # nobody catches it
    assert process.wait(30) == -signal.SIGTERM
    trace, _ = read(path)
    check_steps(trace)
    assert {e["name"] for e in trace["e"]} == {"queued", "prefill"}


def refused(program, model):
    done = subprocess.run([program, "run", model, "x", "--max-tokens", "1", "--trace", "/proc/nowhere/t.json"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "/proc/nowhere/t.json" in done.stderr, done


def main():
    program, model = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        serve(program, model, folder)
        serve_in_a_child(program, model, folder)
        serve_in_a_group(program, model, folder)
        run_killed(program, model, folder)
        refused(program, model)
    print("traces are whole")


if __name__ == "__main__":
    main()
