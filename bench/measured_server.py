"""What the measurements of a running server have in common: their arguments, and the head of what they leave.

A result is JSON: kind, date, command (as it may be given again), device, machine, model, and then what was measured.
"""
import argparse
import datetime
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))
from server import split_flags  # noqa: E402


def argument_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("troupe")
    parser.add_argument("model")
    parser.add_argument("--json", type=pathlib.Path, required=True)
    return parser


def read_arguments(parser):
    """The words before "--", and with them, as `flags`, those behind it, which are the server's. A SIGTERM from here on stops the server, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("out of time"))
    own, flags = split_flags(sys.argv[1:])
    args = parser.parse_args(own)
    args.flags = flags
    return args


def command_of(args):
    """With every argument that matters to the result, given or not."""
    words = [pathlib.Path(sys.argv[0]).name, "troupe", args.model]
    for name, value in vars(args).items():
        if name in ("troupe", "model", "json", "flags") or value is None or value is False:
            continue
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return shlex.join([*words, "--", *args.flags])


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def machine():
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
    cpu = next((line.split(":", 1)[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name")), "")
    out = {"cpu": cpu, "cores": len(os.sched_getaffinity(0)), "gpu": None, "driver": None, "cuda": None}
    try:
        asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        names = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip().splitlines()
        out["gpu"], out["driver"] = [word.strip() for word in names[0].split(",")]
        out["gpus"] = len(names)
    except (OSError, subprocess.CalledProcessError, IndexError, ValueError):
        pass
    return out


def head(kind, args):
    return {
        "kind": kind,
        "date": now(),
        "command": command_of(args),
        "device": "cpu" if "cpu" in args.flags else "cuda",
        "machine": machine(),
        "model": {"name": pathlib.Path(args.model).name},
    }


def write(path, result):
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
