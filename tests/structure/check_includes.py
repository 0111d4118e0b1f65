#!/usr/bin/env python3
"""Checks every #include against the table of docs/architecture.md: who may include whom, and which third party is whose.

usage: check_includes.py ROOT
"""
import pathlib
import re
import sys

# folder -> (other folders it may include, third-party headers it may include; in .cpp and .cu files, not in headers)
RULES = {
    "core": (set(), {"nlohmann"}),
    "tokenizer": ({"core"}, {"pcre2", "unicode", "sentencepiece"}),
    "kvcache": ({"core"}, set()),
    "scheduler": ({"core", "kvcache"}, set()),
    "simulation": ({"core", "kvcache", "scheduler"}, set()),
    "device": ({"core"}, {"cuda"}),
    "kernels": ({"core", "device"}, {"cuda"}),
    "transport/collective": ({"core", "device"}, {"nccl", "cuda"}),
    "models": ({"core", "device", "kernels", "transport/collective"}, set()),
    "transport/http": ({"core"}, {"boost"}),
    "transport/cluster": ({"core"}, {"boost", "openssl"}),
    "telemetry": ({"core"}, {"prometheus"}),
    "actors": ({"core", "tokenizer", "kvcache", "scheduler", "telemetry"}, {"caf"}),
    "apps": (None, {"CLI", "spdlog", "boost"}),  # None: all
}
# Folders whose own headers may include their third party: nobody but apps includes them, and apps includes of actors serving.hpp and
# cluster.hpp, of transport/cluster gate.hpp and links.hpp alone.
# Headers under a cuda/ folder are for the .cu files of the CUDA side.
HEADERS_MAY = {"actors", "apps", "transport/cluster"}
THIRD_PARTY = {
    "nlohmann": r"nlohmann/",
    "pcre2": r"pcre2",
    "unicode": r"unicode/",
    "sentencepiece": r"sentencepiece",
    "cuda": r"(cuda|cublas|cudnn|cutlass|cute|flashinfer|nvtx|mma\.h|cooperative_groups)",
    "nccl": r"nccl",
    "boost": r"boost/",
    "openssl": r"openssl/",
    "prometheus": r"prometheus/",
    "caf": r"caf/",
    "CLI": r"CLI/",
    "spdlog": r"spdlog/",
}
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')


def folder_of(path):
    """The row of the table that a path from the root belongs to, or None."""
    for folder in sorted(RULES, key=len, reverse=True):
        if path.startswith(folder + "/"):
            return folder
    return None


def faults_of(root, path):
    """Yields one line per include of `path` that the table does not allow."""
    folder = folder_of(path)
    folders, parties = RULES[folder]
    for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        style, target = match.groups()
        where = f"{path}:{number}: {target}"
        if style == '"':
            if not (root / target).is_file():
                yield f"{where}: no such file from the root"
            elif folder_of(target) is None:
                yield f"{where}: lies outside the folders of the table"
            elif folders is not None and folder_of(target) not in folders | {folder}:
                yield f"{where}: {folder} may not include {folder_of(target)}"
            continue
        for party, pattern in THIRD_PARTY.items():
            if not re.match(pattern, target):
                continue
            if party not in parties:
                yield f"{where}: {party} is not {folder}'s to use"
            elif path.endswith(".hpp") and folder not in HEADERS_MAY and "/cuda/" not in path:
                yield f"{where}: third parties stay out of headers"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    files = [
        str(p.relative_to(root))
        for folder in {f.split("/")[0] for f in RULES}
        for p in (root / folder).rglob("*")
        if p.suffix in {".hpp", ".cpp", ".cu", ".cuh"}
    ]
    unknown = [f for f in files if folder_of(f) is None]
    faults = [f"{f}: in no folder of the table" for f in unknown]
    for path in sorted(set(files) - set(unknown)):
        faults += faults_of(root, path)
    print("\n".join(faults) or f"{len(files)} files keep the include table")
    return 1 if faults or not files else 0


if __name__ == "__main__":
    sys.exit(main())
