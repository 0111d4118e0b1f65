#!/usr/bin/env python3
"""The device processes' program is replaced in mid-stream: by a new file at the old path, by one that is named, by ones that cannot do it.
Every stream must be the one of an undisturbed run. Prints the pauses, as the server counts them and as the longest silence of a stream.

usage: upgrade.py TROUPE MODEL [ROUNDS] [-- FLAGS]
"""
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import load
from server import Server, split_flags

CASES = [
    *(case for case in load.CASES if "fibonacci" not in case["prompt"]),
    {"prompt": "The three laws are", "temperature": 0.7, "seed": 3, "frequency_penalty": 0.5, "n": 2},
]


def ask_all(server, act=None, tokens=160):
    """(what each choice says, longest silence of any stream); `act` runs once every stream has begun."""
    streams = load.Load(server, tokens, CASES).start()
    if act:
        streams.in_midst()
        act()
    streams.join()
    assert not streams.errors, (streams.errors, server.text()[-3000:])
    return streams.tokens, streams.silence()


def upgrade(program, server, *flags):
    done = subprocess.run([program, "upgrade", "--pid", str(server.process.pid), *flags], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def file_of(pid):
    """What the process runs, wherever its name is now."""
    about = os.stat(f"/proc/{pid}/exe")
    return about.st_dev, about.st_ino


def id_of(path):
    about = os.stat(path)
    return about.st_dev, about.st_ino


def replace(path, source):
    shutil.copy(source, f"{path}.new")
    os.rename(f"{path}.new", path)


class Outcome:
    code, text = None, ""


def in_mid_stream(server, expected, program, *flags):
    """(exit code, what the command said, longest silence of a stream) of an upgrade under load."""
    seen = Outcome()

    def act():
        seen.code, seen.text = upgrade(program, server, *flags)

    texts, silence = ask_all(server, act)
    assert texts == expected, (texts, expected)
    assert seen.code is not None, "the streams had ended"
    return seen.code, seen.text, silence


def check_good(server, expected, program, path, rounds):
    pauses, silences = [], []
    for number in range(rounds):
        before = set(server.children())
        replace(path, program)
        code, text, silence = in_mid_stream(server, expected, program)
        assert code == 0, text
        after = server.children()
        assert len(after) == len(before) and not before & set(after), (before, after)
        assert all(file_of(pid) == id_of(path) for pid in after), "not the new file"
        pauses.append(max(int(ms) for ms in re.findall(r"after a pause of (\d+) ms", text)) / 1000)
        silences.append(silence)
    print(f"{rounds} upgrades: pause {statistics.median(pauses):.3f} s (longest {max(pauses):.3f}), "
          f"longest silence of a stream {statistics.median(silences):.3f} s (longest {max(silences):.3f})")


def write_program(path, lines):
    path.write_text("#!/bin/sh\n" + lines + "\n")
    path.chmod(0o755)
    return str(path)


def check_bad(server, expected, program, folder):
    """Refused before anything is touched, or undone: the program of before runs, and no stream has noticed but for a pause."""
    running = {file_of(pid) for pid in server.children()}
    asks = f'case $* in worker-protocol) exec {program} "$@";; esac; '
    text_file = folder / "text"
    text_file.write_text("no program\n")
    text_file.chmod(0o755)
    for bad, part, touched in (
        ("/bin/false", "no troupe program", False),
        (str(text_file), "Exec format error", False),
        (str(folder / "missing"), "No such file", False),
        (str(folder), "no file", False),
        (write_program(folder / "older", "echo troupe-worker 0-0 0.0.1"), "start the server anew", False),
        (write_program(folder / "leaves", asks + "exit 9"), "exit code 9", True),
        (write_program(folder / "sleeps", asks + "exec sleep 100"), "not ready within", True),
    ):
        before = server.children()
        code, text, _ = in_mid_stream(server, expected, program, "--program", bad, "--start-deadline", "1")
        assert code == 1 and part in text, (bad, code, text)
        assert touched or server.children() == before, "a refused program must not disturb anybody"
        assert {file_of(pid) for pid in server.children()} == running, "not the program of before"
    assert server.metric("troupe_requests_total", 'outcome="failed"') == 0


def alone(program, model, flags, rounds, folder):
    path = folder / "troupe"
    replace(path, program)
    with Server(str(path), model, "--isolate-devices", "--max-model-len", "1024", "--keep-weights", *flags) as server:
        expected, _ = ask_all(server)
        check_good(server, expected, program, path, rounds)
        assert server.metric("troupe_device_restarts_total") == 0, "an upgrade is no restart"
        ranks = len(server.children())
        server.wait_metric("troupe_kept_weights_mapped_total", ranks * rounds)
        assert server.metric("troupe_kept_weights_filled_total") == ranks
        check_bad(server, expected, program, folder)
        code, text = upgrade(program, server, "--program", program)  # idle, and by name
        assert code == 0, text
        assert all(file_of(pid) == id_of(program) for pid in server.children())
        server.wait_idle()
    code, text = upgrade(program, server)
    assert code == 1 and "no troupe server or node" in text, (code, text)


def in_groups(program, model, flags, folder):
    path = folder / "troupe"
    replace(path, program)
    with Server(str(path), model, "--isolate-devices", "--max-model-len", "1024", "--tp", "3", "--dp", "2", *flags) as server:
        expected, _ = ask_all(server)
        check_good(server, expected, program, path, 1)
        assert server.metric("troupe_group_up") == 2
        assert server.metric("troupe_requests_total", 'outcome="failed"') == 0
        server.wait_idle()


def main():
    words, flags = split_flags(sys.argv[1:])
    program, model = os.path.abspath(words[0]), words[1]
    rounds = int(words[2]) if len(words) > 2 else 2
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        alone(program, model, flags, rounds, folder)
        if not flags:
            in_groups(program, model, flags, folder)


if __name__ == "__main__":
    main()
