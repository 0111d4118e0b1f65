"""Streams side by side whose answers do not depend on who computes them, and when each of their tokens came."""
import http.client
import os
import threading
import time

from server import Server

CASES = [
    {"prompt": "The history of the lighthouse begins", "temperature": 0},
    {"prompt": "Once upon a time", "temperature": 0.9, "seed": 7},
    {"prompt": "def fibonacci(n):", "temperature": 1.2, "seed": 99, "top_p": 0.9},
    {"prompt": "List of colours: red, green,", "temperature": 0, "repetition_penalty": 1.2},
]


class Load:
    """All cases as streams at once."""

    def __init__(self, server, max_tokens=64, cases=CASES):
        self.server, self.max_tokens, self.cases = server, max_tokens, cases
        self.said = [[[] for _ in range(case.get("n", 1))] for case in cases]
        self.tokens = [choice for stream in self.said for choice in stream]  # as text, of each choice
        self.arrivals = [[] for _ in cases]  # moments of its events, in time.monotonic()
        self.errors = []
        self.begun = threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(i,)) for i in range(len(cases))]

    def ask(self, i):
        def on_event(event):
            self.arrivals[i].append(time.monotonic())
            for choice in event["choices"]:
                self.said[i][choice["index"]] += (choice.get("logprobs") or {"tokens": []})["tokens"]
            if all(len(moments) >= 4 for moments in self.arrivals):
                self.begun.set()
            return False

        try:
            self.server.stream("/v1/completions", {**self.cases[i], "max_tokens": self.max_tokens, "ignore_eos": True, "logprobs": 0}, on_event)
        except (AssertionError, OSError, ValueError, http.client.HTTPException) as failure:
            self.errors.append(f"stream {i}: {failure!r}")

    def start(self, after_each=lambda i: None):
        """`after_each` is called when a stream has begun, before the next one does."""
        for i, thread in enumerate(self.threads):
            thread.start()
            after_each(i)
        return self

    def in_midst(self):
        """When all streams have had some tokens."""
        assert self.begun.wait(120), "no tokens\n" + self.server.text()
        return self

    def join(self, seconds=180):
        deadline = time.monotonic() + seconds
        for thread in self.threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self.errors.append("a stream has not ended")
        return self

    def silence(self):
        """The longest one of any stream, in seconds."""
        return max(b - a for moments in self.arrivals for a, b in zip(moments, moments[1:]))

    def differing(self, expected):
        """Tokens from the first one on that differs, over all choices."""
        count = 0
        for said, right in zip(self.tokens, expected):
            same = len(os.path.commonprefix([said, right]))
            count += max(len(said), len(right)) - same
        return count

    def expect(self, expected):
        self.join()
        assert not self.errors, (self.errors, self.server.text()[-3000:])
        assert self.differing(expected) == 0, f"{self.tokens}\nis not\n{expected}\n{self.server.text()[-3000:]}"


def undisturbed(program, model, *flags, max_tokens=64):
    """What the streams say at a server that nothing happens to."""
    with Server(program, model, *flags) as server:
        load = Load(server, max_tokens).start().join()
        assert not load.errors and all(len(tokens) == max_tokens for tokens in load.tokens), (load.errors, load.tokens)
        return load.tokens
