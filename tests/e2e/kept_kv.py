#!/usr/bin/env python3
"""The KV cache outlives the device process: killed, frozen or upgraded in mid-stream, requests with long contexts go on without computing
them again, and the text is that of an undisturbed run. After a crash nothing of it is used. Prints the time from a strike to the next
token, with and without.

usage: kept_kv.py TROUPE MODEL [STRIKES] [-- FLAGS]
"""
import os
import signal
import statistics
import sys
import threading
import time

from server import Server, split_flags, wait_until
from upgrade import upgrade

STORY = "The history of the lighthouse begins in the year %d, when the keeper of the light wrote down what the sea had brought. "
CASES = [
    {"temperature": 0},
    {"temperature": 0.8, "seed": 5, "n": 2},
    {"temperature": 0, "repetition_penalty": 1.1},  # its counts need every row: it is computed again
]


def long_prompt(number, sentences):
    return "".join(STORY % (1000 + 100 * number + i) for i in range(sentences))


def ask_all(server, cases, strike=None, tokens=48, sentences=16, after=12):
    """(texts, longest silence of the first request); `strike` comes at the first one's event number `after`."""
    texts, silence, strikes = [None] * len(cases), [0.0], []
    rest = threading.Semaphore(0)

    def ask(i):
        arrivals, joined = [], {}

        def on_event(event):
            arrivals.append(time.monotonic())
            for choice in event["choices"]:
                joined[choice["index"]] = joined.get(choice["index"], "") + choice["text"]
            if i > 0 and len(arrivals) == 2:
                rest.release()
            if i == 0 and strike and len(arrivals) >= after and not strikes:
                strikes.append(threading.Thread(target=strike))
                strikes[0].start()
            return False

        body = {**cases[i], "prompt": long_prompt(i, sentences), "max_tokens": tokens, "ignore_eos": True}
        server.stream("/v1/completions", body, on_event)
        if i == 0:
            silence[0] = max(b - a for a, b in zip(arrivals[1:], arrivals[2:]))
        texts[i] = joined

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(1, len(cases))]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert rest.acquire(timeout=120)
    ask(0)
    for thread in threads + strikes:
        thread.join()
    assert not strike or strikes, "the stream had ended before the strike"
    return texts, silence[0]


def struck(server, cases, expected, name, rank=0, **how):
    """Seconds of silence around a signal to one rank's process."""
    texts, silence = ask_all(server, cases, lambda: os.kill(server.children()[rank], getattr(signal, name)), **how)
    assert texts == expected, (name, texts, expected)
    return silence


def expect_ups(server, kept, lost):
    """Waits until groups came up again that often, with their KV cache and without it: texts may end before, on another replica."""
    wait_until(lambda: server.text().count("up again") >= kept + lost, server.text)
    log = server.text()
    with_cache = log.count("up again, with its KV cache")
    assert (with_cache, log.count("up again") - with_cache) == (kept, lost), log


def measure(program, model, flags, count):
    """Kill to next token with one long context, with and without."""
    times = {}
    for keep in ("--no-keep-kv", "--keep-kv"):
        with Server(program, model, *flags, keep) as server:
            expected, _ = ask_all(server, CASES[:1], sentences=55)
            times[keep] = [struck(server, CASES[:1], expected, "SIGKILL", sentences=55) for _ in range(count)]
            expect_ups(server, *((count, 0) if keep == "--keep-kv" else (0, count)))
    for keep, seconds in times.items():
        print(f"kill to the next token, {keep}: median of {count} {statistics.median(seconds):.3f} s ({min(seconds):.3f} to {max(seconds):.3f})")
    assert statistics.median(times["--keep-kv"]) < statistics.median(times["--no-keep-kv"])


def strikes(program, model, flags):
    with Server(program, model, *flags, "--keep-kv") as server:
        expected, _ = ask_all(server, CASES)
        assert all(expected), expected
        for name, kept in (("SIGKILL", (1, 0)), ("SIGSTOP", (2, 0)), ("SIGSEGV", (2, 1)), ("SIGKILL", (3, 1))):
            struck(server, CASES, expected, name)
            expect_ups(server, *kept)
        assert "kept, but not its content: the device failed" in server.text()
        said = []
        texts, _ = ask_all(server, CASES, lambda: said.append(upgrade(program, server, "--program", program)))
        assert texts == expected and said[0][0] == 0, (said, texts, expected)
        expect_ups(server, 4, 1)
        (keeper,) = server.children("keeper")
        os.kill(keeper, signal.SIGKILL)  # who comes next finds nothing, and leaves its own with the new keeper
        server.other_keeper(keeper)
        struck(server, CASES, expected, "SIGKILL")
        expect_ups(server, 4, 2)
        struck(server, CASES, expected, "SIGKILL")
        expect_ups(server, 5, 2)
        assert server.metric("troupe_requests_total", 'outcome="failed"') == 0
        server.wait_idle()


def in_groups(program, model, flags):
    with Server(program, model, *flags, "--keep-kv", "--tp", "3", "--dp", "2") as server:
        expected, _ = ask_all(server, CASES)
        for kills, rank in enumerate((0, 4), 1):
            struck(server, CASES, expected, "SIGKILL", rank)
            expect_ups(server, kills, 0)
        server.wait_idle()
    with Server(program, model, *flags, "--keep-kv", "--pp", "2", "--speculative-method", "ngram") as server:
        expected, _ = ask_all(server, CASES)
        struck(server, CASES, expected, "SIGKILL", 1, after=3)  # an event may hold several tokens
        expect_ups(server, 1, 0)


def main():
    words, flags = split_flags(sys.argv[1:])
    program, model = os.path.abspath(words[0]), words[1]
    count = int(words[2]) if len(words) > 2 else 2
    always = ["--isolate-devices", "--max-model-len", "2048", "--max-device-restarts", "1000", "--keep-weights", *flags]
    measure(program, model, always, count)
    strikes(program, model, always)
    if not flags:
        in_groups(program, model, always)


if __name__ == "__main__":
    main()
