#!/usr/bin/env python3
"""Checks with `nm -C` that a third party's symbols stay in the folder that owns it.

usage: check_symbols.py BUILD_FOLDER        (where the libtroupe_*.a archives lie)
"""
import pathlib
import re
import subprocess
import sys

OWNERS = {
    "CAF": (re.compile(r"\bcaf::"), {"actors"}),
    "Boost": (re.compile(r"\bboost::"), {"transport_http", "transport_cluster", "apps"}),
    "OpenSSL": (re.compile(r"\b(SSL_\w+|EVP_\w+|HMAC)\b"), {"transport_cluster"}),
    "CUDA": (re.compile(r"\b(cuda[A-Z]\w+|cublas\w+)"), {"device", "kernels", "transport_collective"}),
    "NCCL": (re.compile(r"\bnccl[A-Z]\w+"), {"transport_collective"}),
    "prometheus-cpp": (re.compile(r"\bprometheus::"), {"telemetry"}),
    "nlohmann-json": (re.compile(r"\bnlohmann::"), {"core"}),
    "PCRE2": (re.compile(r"\bpcre2_\w+"), {"tokenizer"}),
    "SentencePiece": (re.compile(r"\bsentencepiece::"), {"tokenizer"}),
}


def main():
    archives = sorted(pathlib.Path(sys.argv[1]).rglob("libtroupe_*.a"))
    faults = []
    for archive in archives:
        folder = archive.stem.removeprefix("libtroupe_")
        symbols = subprocess.run(["nm", "-C", str(archive)], capture_output=True, text=True, check=True).stdout
        for party, (pattern, owners) in OWNERS.items():
            if folder in owners:
                continue
            found = pattern.search(symbols)
            if found:
                line = symbols[symbols.rfind("\n", 0, found.start()) + 1 : symbols.find("\n", found.end())]
                faults.append(f"{archive.name}: {party}: {line.strip()[:160]}")
    print("\n".join(faults) or f"{len(archives)} archives keep third parties to their owners")
    return 1 if faults or len(archives) < 8 else 0


if __name__ == "__main__":
    sys.exit(main())
