#!/usr/bin/env python3
"""Strikes ranks and nodes in mid-stream, again and again, each time another one at another moment, and measures what clients and operators see.

usage: failure_table.py TROUPE MODEL [--nodes 5] [--rounds 20] [--only WORDS] [--check] [-- FLAGS OF SERVE]

A head and so many nodes with a slot each, every node in a network namespace of its own, all under mutual TLS on the CPU; needs root, and
exits with 77 (skipped) where there are no namespaces. Default flags: --pp 2 --dp 2, which leave one node of five as a spare.
With --nodes 0 one server alone, anywhere, whose ranks are struck: the flags must make it a process per rank (--isolate-devices, --device cuda).

Prints a Markdown table. With --check it fails where a promise of docs/reliability.md is broken: a loss noticed late, a request lost, a token that
differs from an undisturbed server's, a group formed anew that was not struck, or oftener than it was.
"""
import argparse
import math
import random
import statistics
import sys
import time

import netns
from faults import BLINK_S, OUT_OF_MEMORY, MemoryGroup, memory_can_be_limited
from load import Load, undisturbed
from server import Watch, split_flags
from worlds import LocalWorld, NodesWorld

MAX_TOKENS = 128
DETECTION_LIMIT_S = 2.0


class Round:
    """One load, and what happened to it."""

    def __init__(self, world):
        self.world = world
        self.server = world.server
        self.load = Load(self.server, MAX_TOKENS)
        self.replica_of = {}  # of each stream

    def start(self):
        before = self.sequences()

        def find_replica(i):
            nonlocal before
            deadline = time.monotonic() + 10
            while (now := self.sequences()) == before and time.monotonic() < deadline:
                time.sleep(0.005)
            self.replica_of[i] = max(range(self.world.replicas), key=lambda r: now[r] - before[r])
            before = now

        self.load.start(find_replica if self.world.replicas > 1 else lambda i: self.replica_of.update({i: 0})).in_midst()
        return self

    def sequences(self):
        return [self.world.count("troupe_group_sequences", r) for r in range(self.world.replicas)]

    def restarts(self):
        return [self.world.count("troupe_group_restarts_total", r) for r in range(self.world.replicas)]

    def streams_of(self, replica):
        """All, where it is not known which replica was meant."""
        return [i for i, at in self.replica_of.items() if replica in (at, None)]

    def longest_silence(self, streams, since=0.0):
        """Seconds between two events of one stream that ends after `since`."""
        gaps = [b - a for i in streams for a, b in zip(self.load.arrivals[i], self.load.arrivals[i][1:]) if b > since]
        return max(gaps, default=None)

    def next_event(self, streams, since):
        return min((moment for i in streams for moment in self.load.arrivals[i] if moment > since), default=None)


def strike(world, fault, expected, randomness):
    """Strikes once; what came of it."""
    it = Round(world).start()
    time.sleep(randomness.uniform(0, 0.3))
    victim = world.pick(randomness, sorted(set(it.replica_of.values())))
    restarts, places = it.restarts(), world.where(victim.replica)
    victim.chance = randomness.random()
    busy, said = world.own_seconds(victim.replica), len(it.server.text())
    least, most = fault.losses
    watch = Watch(it.server, "device lost", seconds=90 if least else 3) if most else None
    struck = time.monotonic()
    struck = fault.strike(world, victim) or struck
    noticed = watch.wait() if watch else None
    if fault.heal:
        time.sleep(randomness.uniform(0, 2))
        fault.heal(world, victim)
    it.load.join()
    world.settle()
    more = [after - before for before, after in zip(busy, world.own_seconds(victim.replica))]
    formed = [after - before for before, after in zip(restarts, it.restarts())]
    replica = max(range(world.replicas), key=lambda r: formed[r]) if any(formed) else victim.replica
    struck_streams = it.streams_of(replica)
    other_streams = [i for i in it.replica_of if i not in struck_streams]
    resumed = it.next_event(struck_streams, noticed) if noticed else None
    mine = formed[replica] if any(formed) else 0
    return {
        "victim": victim,
        "noticed": noticed and noticed - struck,
        "resumed": resumed and resumed - struck,
        "moved": bool(fault.of_node and any(formed) and victim.machine not in world.where(replica) and victim.machine in places),
        "restarts": mine,
        "losses": [line for line in it.server.text()[said:].splitlines() if " lost" in line],
        "restarts elsewhere": sum(formed) - mine,
        "cut": victim.cut_s,
        "named": more[victim.rank] == max(more) > 0 if fault.slow and victim.rank is not None and world.tells_who_is_slow() else None,
        "silence": it.longest_silence(struck_streams, struck),
        "silence elsewhere": it.longest_silence(other_streams, struck),
        "errors": it.load.errors,
        "differ": it.load.differing(expected),
    }


def spread(values):
    values = [v for v in values if v is not None]
    return f"{statistics.median(values):.2f} s ({max(values):.2f} s)" if values else "-"


def broken_promises(fault, done):
    total = {key: sum(r[key] for r in done) for key in ("differ", "restarts", "restarts elsewhere")}
    errors = [text for r in done for text in r["errors"]]
    if errors or total["differ"]:
        yield f"requests lost: {errors}; tokens that differ: {total['differ']}"
    least, most = fault.losses
    if any((r["noticed"] or (math.inf if least else 0)) > DETECTION_LIMIT_S for r in done):
        yield f"not noticed within {DETECTION_LIMIT_S} s: {[r['noticed'] for r in done]}"
    longer = [r["cut"] is not None and r["cut"] > BLINK_S + 0.2 for r in done]  # on a machine too busy to heal it in time
    if any(not (least <= r["restarts"] <= max(most, late)) for r, late in zip(done, longer)):
        yield f"the group formed anew so often: {[r['restarts'] for r in done]}: {[r['losses'] for r in done]}"
    if total["restarts elsewhere"]:
        yield f"another group formed anew: {[r['restarts elsewhere'] for r in done]}"
    if len(done) >= 10 and 2 * sum(r["named"] is not False for r in done) < len(done):
        yield f"the metrics name others: {[r['named'] for r in done]}"


COLUMNS = [
    "fault",
    "times",
    "noticed after",
    "next token after",
    "moved to a spare",
    "groups formed anew",
    "requests lost",
    "tokens that differ",
    "longest silence of its streams",
    "longest silence of another group's",
]


def row(fault, done):
    def total(key):
        return sum(r[key] for r in done)

    cells = [fault.name, len(done), spread([r["noticed"] for r in done]), spread([r["resumed"] for r in done])]
    cells += [total("moved") if fault.of_node and fault.losses[1] else "-", int(total("restarts") + total("restarts elsewhere"))]
    cells += [sum(len(r["errors"]) for r in done), total("differ"), spread([r["silence"] for r in done]), spread([r["silence elsewhere"] for r in done])]
    return cells


def print_row(cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def undisturbed_silence(world, rounds):
    silences = []
    for _ in range(rounds):
        it = Round(world).start()
        it.load.join()
        world.settle()
        silences.append(it.longest_silence(it.replica_of))
    return spread(silences)


def make_table(world, args, expected):
    """Prints it; returns what was broken."""
    randomness = random.Random(args.seed)
    broken = []
    quiet = undisturbed_silence(world, min(args.rounds, 5))
    print_row(COLUMNS)
    print_row(["---"] * len(COLUMNS))
    named = []
    for fault in world.faults:
        if args.only not in fault.name:
            continue
        if fault is OUT_OF_MEMORY and not memory_can_be_limited():
            print(f"left out, for no memory control group can be made here: {fault.name}", file=sys.stderr)
            continue
        done = [strike(world, fault, expected, randomness) for _ in range(args.rounds)]
        print_row(row(fault, done))
        broken += [f"{fault.name}: {what}" for what in broken_promises(fault, done)]
        if done[0]["named"] is not None:
            named.append(f"{fault.name}: {sum(r['named'] for r in done)} of {len(done)} times")
    print(f"\nMedians (longest). The longest silence of any stream while nothing happens: {quiet}.")
    if named:
        print("The metrics name who was slow:", "; ".join(named))
    return broken


def measure(args, flags):
    if args.nodes:
        netns.enter()
        flags = flags or ["--pp", "2", "--dp", "2"]
        expected = undisturbed(args.troupe, args.model, "--device", "cpu", *flags, max_tokens=MAX_TOKENS)
        world = NodesWorld(args.troupe, args.model, flags, args.nodes)
    else:
        expected = undisturbed(args.troupe, args.model, *flags, max_tokens=MAX_TOKENS)
        world = LocalWorld(args.troupe, args.model, flags)
    with world.running():
        return make_table(world, args, expected)


def main():
    own, flags = split_flags(sys.argv[1:])
    parser = argparse.ArgumentParser()
    parser.add_argument("troupe")
    parser.add_argument("model")
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="", help="faults whose name contains this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args(own)
    try:
        broken = measure(args, flags)
    finally:
        if not netns.inside():
            MemoryGroup.remove_leftovers()
    if args.check and broken:
        raise SystemExit("\n".join(broken))


if __name__ == "__main__":
    main()
