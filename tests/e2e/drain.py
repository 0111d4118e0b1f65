#!/usr/bin/env python3
"""SIGTERM: running streams end by themselves, new requests are refused, the exit code is 0; a limit or a second signal cuts it short.

usage: drain.py TROUPE MODEL
"""
import json
import signal
import sys
import threading
import time

from server import Server

BODY = {"prompt": "Once upon a time", "max_tokens": 200, "temperature": 0, "ignore_eos": True}


def start_stream(server, outcome, body):
    """Streams in the background; `outcome` gets the last event's data, or the exception."""
    first = threading.Event()

    def run():
        try:
            connection = server.connect()
            connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}))
            for line in connection.getresponse():
                data = line.decode().strip()
                if data:
                    outcome.append(data[6:])
                    first.set()
        except OSError as failure:
            outcome.append(repr(failure))
            first.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert first.wait(60)
    return thread


def running_streams_end_by_themselves(program, model):
    with Server(program, model, "--max-model-len", "1024") as server:
        outcome = []
        thread = start_stream(server, outcome, BODY)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        try:
            status, _ = server.get("/readyz")
            assert status == 503, status
        except OSError:
            pass  # no new connection is as good
        thread.join()
        assert outcome[-1] == "[DONE]", outcome[-1]
        assert sum('"text"' in event for event in outcome) > 100
        assert server.process.wait(30) == 0


def cut_short(program, model, flags, second_signal):
    with Server(program, model, "--max-model-len", "8192", *flags) as server:
        outcome = []
        thread = start_stream(server, outcome, {**BODY, "max_tokens": 8000})
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        if second_signal:
            time.sleep(0.3)
            server.process.send_signal(signal.SIGTERM)
        thread.join()
        assert server.process.wait(30) == 0
        assert time.monotonic() - start < 15
        assert "error" in json.loads(next(e for e in reversed(outcome) if e != "[DONE]")), outcome[-1]


def main():
    program, model = sys.argv[1:]
    running_streams_end_by_themselves(program, model)
    cut_short(program, model, ["--drain-timeout", "1"], second_signal=False)
    cut_short(program, model, ["--isolate-devices"], second_signal=True)
    print("drained, cut short by the limit, and cut short by a second signal")


if __name__ == "__main__":
    main()
