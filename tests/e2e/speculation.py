#!/usr/bin/env python3
"""Speculation with the real model: the texts of plain decoding, greedy and seeded, also when the device process is killed.

usage: speculation.py TROUPE MODEL
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from recovery import CASES, ask_all
from server import Server

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"


def drafts(server):
    return [server.metric(f"troupe_spec_{kind}_tokens_total") for kind in ("drafted", "accepted")]


def check_refusals(program, model):
    with tempfile.TemporaryDirectory() as folder:  # a model whose tokens mean something else
        other = pathlib.Path(folder)
        for name in ("config.json", "model.safetensors"):
            (other / name).symlink_to(FIXTURES / "models" / "llama3-gqa" / name)
        fixture = json.loads((FIXTURES / "tokenizer" / "gpt2.json").read_text())
        (other / "tokenizer.json").write_text(json.dumps(fixture["tokenizer"]))
        for flags, words in (
            (["--speculative-method", "draft", "--speculative-draft-model", str(other)], "its vocabulary has"),
            (["--speculative-method", "draft"], "go together"),
            (["--speculative-draft-model", model], "go together"),
        ):
            run = subprocess.run([program, "run", model, "Hello", *flags], capture_output=True, text=True, timeout=60)
            assert run.returncode != 0 and words in run.stderr, (flags, run.returncode, run.stderr)


def of_dummy_weights(program):
    """A config alone is enough of a draft model, too, for every process of a group."""
    model = str(pathlib.Path(__file__).resolve().parent.parent.parent / "bench" / "configs" / "tiny")
    words = [program, "run", model, "Hello", "--load-format", "dummy", "--device", "cpu", "--raw", "--max-tokens", "48", "--temperature", "0"]
    said = []
    for flags in ([], ["--speculative-method", "draft", "--speculative-draft-model", model]):
        run = subprocess.run([*words, "--tp", "2", "--isolate-devices", *flags], capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, run.stderr
        said.append(run.stdout)
    assert said[0] and said[0] == said[1], said


def in_groups(program, model, draft):
    """The leader of a group has the draft model; the texts are the group's own without one, also when any rank is killed."""
    for shape in (["--tp", "3"], ["--pp", "2"]):
        with Server(program, model, "--max-model-len", "1024", *shape) as plain:
            expected = ask_all(plain)
        with Server(program, model, "--max-model-len", "1024", "--isolate-devices", *shape, *draft) as server:
            assert ask_all(server) == expected, shape
            ranks = server.children()
            texts = ask_all(server, lambda: os.kill(ranks[-1], signal.SIGKILL))
            assert texts == expected, (shape, texts, expected)
            server.wait_idle()
            drafted, accepted = drafts(server)
            print(f"draft with {' '.join(shape)}: {accepted:.0f} of {drafted:.0f} drafts accepted")
            assert accepted > 0


def main():
    program, model = sys.argv[1:]
    with Server(program, model, "--max-model-len", "1024") as plain:
        expected = ask_all(plain)
        assert all(expected), expected
    draft = ["--speculative-method", "draft", "--speculative-draft-model", model]  # its own draft model: nearly all is accepted
    for flags in (["--speculative-method", "ngram"], draft):
        with Server(program, model, "--max-model-len", "1024", "--isolate-devices", *flags) as server:
            assert ask_all(server) == expected, flags
            (child,) = server.children()
            texts = ask_all(server, lambda: os.kill(child, signal.SIGKILL))
            assert texts == expected, (flags, texts, expected)
            server.wait_idle()
            drafted, accepted = drafts(server)
            print(f"{flags[1]}: {len(CASES)} texts twice as in plain decoding, {accepted:.0f} of {drafted:.0f} drafts accepted")
            assert flags is not draft or accepted > 0  # how many depends on what steps cost
    in_groups(program, model, draft)
    of_dummy_weights(program)
    check_refusals(program, model)


if __name__ == "__main__":
    main()
