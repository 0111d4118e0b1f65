#!/usr/bin/env python3
"""Weights outlive the device process: killed in mid-stream it is back without loading them, and the text is that of an undisturbed run.
Killed itself, the keeper is replaced, the device goes on, and the next one loads anew. Prints the time from a kill to the next token,
with and without a keeper.

usage: keeper.py TROUPE MODEL [KILLS]
"""
import os
import re
import signal
import statistics
import sys
import time

from server import Server

PROMPT = {"prompt": "The history of the lighthouse begins", "temperature": 0, "max_tokens": 160, "ignore_eos": True}


def ask(server, kill=None):
    """(text, longest silence between two tokens in seconds): with a kill in mid-stream, the time from it to the next token."""
    arrivals = []

    def on_event(_):
        arrivals.append(time.monotonic())
        if kill and len(arrivals) == 8:
            kill()
        return False

    events = server.stream("/v1/completions", PROMPT, on_event)
    text = "".join(choice["text"] for event in events for choice in event["choices"])
    return text, max(b - a for a, b in zip(arrivals, arrivals[1:]))


def kills(server, expected, count):
    """Seconds of silence after each of `count` kills of the device process."""
    times = []
    for _ in range(count):
        (worker,) = server.children("worker")
        text, silence = ask(server, lambda: os.kill(worker, signal.SIGKILL))
        assert text == expected, (text, expected)
        times.append(silence)
    return times


def check_kept(server, expected, count):
    (keeper,) = server.children("keeper")
    times = kills(server, expected, count)
    log = server.text()
    assert len(re.findall(r"weights: \d+\.\d MiB loaded in \d+\.\d+ s, kept for the next start", log)) == 1, log
    mapped = re.findall(r"weights: \d+\.\d MiB kept, mapped in (\d+\.\d+) s", log)
    assert len(mapped) == count, log
    server.wait_metric("troupe_kept_weights_mapped_total", count)
    assert server.metric("troupe_kept_weights_filled_total") == 1
    assert server.metric("troupe_kept_weights_bytes") > 50e6
    print(f"mapped in {', '.join(mapped)} s")
    return keeper, times


def check_lost_keeper(server, expected, keeper, mapped):
    """The device goes on while the keeper is gone; the next device loads, and leaves its weights with the new keeper. `mapped`: so far."""
    text, _ = ask(server, lambda: os.kill(keeper, signal.SIGKILL))
    assert text == expected, (text, expected)
    replacement = server.other_keeper(keeper)
    assert server.metric("troupe_keeper_restarts_total") == 1
    assert server.metric("troupe_kept_weights_bytes") == 0
    kills(server, expected, 2)
    log = server.text()
    assert log.count("kept for the next start") == 2, log
    server.wait_metric("troupe_kept_weights_mapped_total", mapped + 1)
    assert server.metric("troupe_kept_weights_bytes") > 50e6
    return replacement


def check_groups(program, model, flags):
    """Two replicas of three ranks: each part of the weights is filled once, and mapped by the other replica's rank and after each loss."""
    with Server(program, model, *flags, "--keep-weights", "--tp", "3", "--dp", "2") as server:
        expected, _ = ask(server)
        server.wait_metric("troupe_kept_weights_mapped_total", 3)
        assert server.metric("troupe_kept_weights_filled_total") == 3
        whole = server.metric("troupe_kept_weights_bytes")
        os.kill(server.children("worker")[0], signal.SIGKILL)
        server.wait_text("up again")
        assert ask(server)[0] == expected
        server.wait_metric("troupe_kept_weights_mapped_total", 6)
        assert server.metric("troupe_kept_weights_filled_total") == 3
        assert server.metric("troupe_kept_weights_bytes") == whole


def main():
    program, model = sys.argv[1:3]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    flags = ["--isolate-devices", "--max-model-len", "1024", "--max-device-restarts", "1000"]
    with Server(program, model, *flags, "--no-keep-weights") as server:
        assert not server.children("keeper")
        expected, _ = ask(server)
        cold = kills(server, expected, count)
        assert "weights:" not in server.text()
    with Server(program, model, *flags, "--device", "cpu") as server:  # on a CPU it must be asked for
        assert not server.children("keeper")
    with Server(program, model, *flags, "--keep-weights") as server:
        assert ask(server)[0] == expected
        keeper, warm = check_kept(server, expected, count)
        keeper = check_lost_keeper(server, expected, keeper, count)
    check_groups(program, model, flags)
    assert not os.path.exists(f"/proc/{keeper}"), "the keeper outlived its owner"
    for name, times in (("without", cold), ("with", warm)):
        print(f"kill to the next token {name} a keeper, median of {count}: {statistics.median(times):.3f} s ({min(times):.3f} to {max(times):.3f})")


if __name__ == "__main__":
    main()
