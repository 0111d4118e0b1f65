#!/usr/bin/env python3
"""Installs the program into a folder, moves it, and runs it there: it may need nothing outside the folder but the C library's parts and CUDA's.

usage: check_install.py BUILD
"""
import pathlib
import re
import subprocess
import sys
import tempfile

OUTSIDE = re.compile(r"^(linux-vdso|ld-linux|lib(c|m|rt|dl|pthread|resolv)\.so|lib(cuda|cudart|cublas|cublasLt|nccl)\.so)")


def run(*command, **more):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, **more).stdout


def main():
    with tempfile.TemporaryDirectory() as folder:
        made, moved = pathlib.Path(folder) / "made", pathlib.Path(folder) / "moved"
        run("cmake", "--install", sys.argv[1], "--prefix", str(made))
        made.rename(moved)
        program = moved / "bin/troupe"
        needed = [line.split() for line in run("ldd", str(program)).splitlines()]
        for words in needed:
            name = words[0].rsplit("/", 1)[-1]
            if "not" in words:
                sys.exit(f"{name} is not found")
            if not OUTSIDE.match(name) and str(moved) not in str(pathlib.Path(words[2]).resolve()):
                sys.exit(f"{name} is taken from {words[2]}, outside the folder")
        version = run(str(program), "--version", env={})
        config = moved / "share/troupe/configs/tiny"
        flags = ("--load-format", "dummy", "--device", "cpu", "--kv-cache-memory", "16MiB", "--max-tokens", "4")
        text = run(str(program), "run", str(config), "1 2 3", *flags, env={})
        assert re.match(r"\d+\.\d+", version.split()[-1]) and text.strip(), (version, text)


if __name__ == "__main__":
    main()
