#!/usr/bin/env python3
"""Kills a device's process while its server answers, again and again: seconds from the kill until the server says so, to what the new processes have
reached, and to the next token that any client gets.

usage: kill_worker.py TROUPE MODEL --json FILE [--kills 10] [--streams 8] [--tokens 128] [--rest 2] [-- flags of serve]

Each kill has a load of its own: all streams begin at once, one process of the group, another each time, gets SIGKILL when every stream has
had a few tokens, and all streams must come to their ends. Fails when a request is lost; writes what was measured in any case.
"""
import os
import signal
import statistics
import threading
import time

from measured_server import argument_parser, head, read_arguments, write  # makes tests/e2e importable
from restart_stages import stage_table, stages_after
from server import Server


class Load:
    """Streams side by side, and when their tokens came."""

    def __init__(self, server, streams, tokens):
        self.server, self.streams, self.tokens = server, streams, tokens
        self.arrivals = []
        self.struck_at = None  # by the clock of logs
        self.lost = []
        self.lock = threading.Lock()
        self.under_way = threading.Event()

    def ask(self, number):
        # A model without a tokenizer has numbers for texts.
        body = {"prompt": " ".join(str(7 * number + i) for i in range(64)), "max_tokens": self.tokens, "temperature": 0, "ignore_eos": True}

        def on_event(_):
            with self.lock:
                self.arrivals.append(time.monotonic())
                if len(self.arrivals) >= 5 * self.streams:
                    self.under_way.set()
            return False

        try:
            self.server.stream("/v1/completions", body, on_event)
        except (AssertionError, OSError) as failure:
            with self.lock:
                self.lost.append(repr(failure)[:500])
                self.under_way.set()

    def run(self, strike=None):
        threads = [threading.Thread(target=self.ask, args=(i,)) for i in range(self.streams)]
        for thread in threads:
            thread.start()
        struck = None
        if strike:
            if not self.under_way.wait(120):
                raise SystemExit("no tokens within 120 s")
            struck = time.monotonic()
            self.struck_at = time.time()
            strike()
        for thread in threads:
            thread.join()
        return struck

    def silence_after(self, struck):
        """Seconds from then to the end of the longest gap between tokens, which is the loss."""
        times = [t for t in sorted(self.arrivals) if t >= struck]
        gaps = list(zip([struck, *times], times))
        return max(gaps, key=lambda gap: gap[1] - gap[0])[1] - struck if gaps else None


def measure(args):
    seconds, stages, lost = [], [], []
    begin = time.monotonic()
    with Server(args.troupe, args.model, "--max-device-restarts", "1000", *args.flags) as server:
        ready = time.monotonic() - begin
        Load(server, args.streams, args.tokens).run()
        time.sleep(args.rest)  # what stands by gets ready
        for round_number in range(args.kills):
            workers = sorted(server.children())
            load = Load(server, args.streams, args.tokens)
            struck = load.run(lambda: os.kill(workers[round_number % len(workers)], signal.SIGKILL))
            lost += load.lost
            seconds.append(load.silence_after(struck))
            stages.append({what: round(at, 3) for what, at in stages_after(server.text(), load.struck_at).items()})
            if seconds[-1] is not None:
                stages[-1]["token"] = round(seconds[-1], 3)
            print(f"kill {round_number + 1} of {args.kills}: next token after {seconds[-1]} s, {len(load.lost)} requests lost", flush=True)
            server.wait_idle()
            time.sleep(args.rest)
        print("\n".join(stage_table(stages)))
        kept = [line for line in server.text().splitlines() if "weights:" in line or "restart" in line]
        print("\n".join(kept[-4:]))
        time.sleep(1.2)  # the keeper's counts are told once a second
        mapped = server.metric("troupe_kept_weights_mapped_total")
    return {"ready_seconds": ready, "seconds": seconds, "stages": stages, "lost": lost, "mapped": mapped}


def main():
    parser = argument_parser()
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rest", type=float, default=2, help="seconds between loads, in which what stands by gets ready")
    args = read_arguments(parser)
    done = measure(args)
    timed = [s for s in done["seconds"] if s is not None]
    result = {
        **head("kills", args),
        "workload": {"kills": args.kills, "streams": args.streams, "tokens": args.tokens, "rest": args.rest},
        "weights_mapped": done["mapped"],
        "ready_seconds": done["ready_seconds"],
        "seconds": done["seconds"],
        "noticed_seconds": [of_kill.get("noticed") for of_kill in done["stages"]],
        "stages": done["stages"],
        "median_seconds": statistics.median(timed) if timed else None,
        "longest_seconds": max(timed, default=None),
        "requests_lost": len(done["lost"]),
    }
    write(args.json, result)
    print(f"kill to the next token: median {result['median_seconds']} s, longest {result['longest_seconds']} s; ready after {done['ready_seconds']:.2f} s")
    if done["lost"] or len(timed) < args.kills:
        raise SystemExit("lost: " + "\n".join(done["lost"]) if done["lost"] else "no token came after a kill")


if __name__ == "__main__":
    main()
