#!/usr/bin/env python3
"""Runs a command against a fresh server; {url} and {model} in its words are replaced.

usage: with_server.py TROUPE MODEL [server flags] -- COMMAND...
"""
import json
import subprocess
import sys

from server import Server


def main():
    split = sys.argv.index("--")
    program, model, *flags = sys.argv[1:split]
    with Server(program, model, *flags) as server:
        key = flags[flags.index("--api-key") + 1] if "--api-key" in flags else ""
        name = json.loads(server.get("/v1/models", {"Authorization": "Bearer " + key})[1])["data"][0]["id"]
        words = [word.replace("{url}", server.url).replace("{model}", name) for word in sys.argv[split + 1 :]]
        code = subprocess.run(words, check=False).returncode
    sys.exit(code)


if __name__ == "__main__":
    main()
