#!/usr/bin/env python3
"""What `troupe simulate` predicts for each figure that bench/scaling_results.sh left in a folder, in predicted.json beside them.

usage: scaling_predict.py TROUPE FOLDER

GPUs: a roofline of the ceilings that were measured in the same run (ceilings.json) where there are such, else of the built-in ones. A CPU:
the table of `troupe bench calibrate` (device-table.json), which knows one device and replicas of it alone. Loads are simulated request by
request as they were sent. Nothing of a prediction comes from the figure that it stands beside.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from measured_server import machine, now, write


def simulate(args, *words):
    done = subprocess.run([str(word) for word in (args.troupe, "simulate", *words, "--json", "-")], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"simulate {' '.join(map(str, words))}: {done.stderr.strip()}", file=sys.stderr)
        return None
    return json.loads(done.stdout)


def device_flags(args, result):
    """Flags for the device that `result` was measured on; None where the simulator knows no such device."""
    parallel = result["parallel"]
    if result["device"] == "cpu":
        table = args.folder / "device-table.json"
        return ["--device-table", table] if table.exists() and parallel["tp"] * parallel["pp"] == 1 else None
    flags = ["--model", result["model"]["name"], "--tp", parallel["tp"], "--pp", parallel["pp"]]
    return flags + (["--ceilings", args.folder / "ceilings.json"] if (args.folder / "ceilings.json").exists() else [])


def steps(args, result, flags):
    decode = {f"decode:{d['batch']}:{d['context']:.0f}": str(d["batch"]) for d in result["decode"]}
    prefill = {f"prefill:{p['prompt_tokens']}:0": str(p["prompt_tokens"]) for p in result["prefill"]}
    said = simulate(args, *flags, "--step", ",".join([*decode, *prefill]))
    if said is None:
        return None
    return {"decode_ms": {batch: said["steps_ms"][name] for name, batch in decode.items()},
            "prefill_ms": {tokens: said["steps_ms"][name] for name, tokens in prefill.items()}}


def load(args, result, flags, part):
    parallel, limits, wanted = result["parallel"], result["limits"], result["objectives_ms"]
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as trace:
        trace.write(result[part]["trace_csv"])
        trace.flush()
        gpus = parallel["dp"] * (1 if result["device"] == "cpu" else parallel["tp"] * parallel["pp"])
        batched = [] if result["device"] == "cpu" else ["--max-num-batched-tokens", limits["max_num_batched_tokens"]]
        said = simulate(args, *flags, "--trace", trace.name, "--nodes", 1, "--gpus-per-node", gpus, "--router", "least-loaded", "--max-queue", 1 << 20,
                        "--max-num-seqs", limits["max_num_seqs"], *batched, "--ttft-ms", wanted["ttft"], "--tpot-ms", wanted["itl"])
    if said is None:
        return None
    point = said["points"][0]
    return {"output_tokens_per_second": point["output_tokens_per_second"], "goodput_requests_per_second": point["goodput_requests_per_second"],
            "ttft_ms": point["ttft_ms"], "itl_ms": point["itl_ms"]}


def predict(args, result):
    flags = device_flags(args, result)
    if flags is None:
        return None
    if result["kind"] == "latency":
        return steps(args, result, flags)
    return {part: load(args, result, flags, part) for part in ("arriving", "at_once") if result.get(part)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("troupe")
    parser.add_argument("folder", type=pathlib.Path)
    args = parser.parse_args()
    predicted, device = {}, "cuda"
    for path in sorted(args.folder.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if result.get("kind") in ("latency", "serving") and not path.name.startswith("split-"):
            device = result["device"]
            predicted[path.stem] = predict(args, result)
    out = {
        "kind": "predicted",
        "date": now(),
        "command": "scaling_predict.py troupe FOLDER",
        "device": device,
        "machine": machine(),
        "steps": {name: figures for name, figures in predicted.items() if figures},
    }
    write(args.folder / "predicted.json", out)
    print(f"predicted: {', '.join(out['steps']) or 'nothing'}")


if __name__ == "__main__":
    main()
