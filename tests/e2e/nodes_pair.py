#!/usr/bin/env python3
"""One model at `--tp 2` on two nodes of one device each, which know nothing of each other but the network: with GPUs each node sees one of two, and
NCCL may use neither NVLink nor shared memory, so it goes through sockets, as between machines. The texts are those of one server with both
devices, also when a node is killed under load and comes back.

usage: nodes_pair.py TROUPE MODEL [--device cpu] [-- more flags of serve]
"""
import argparse
import pathlib
import signal
import sys
import tempfile
import time

from cluster import Cluster, Node
from load import Load, undisturbed
from server import split_flags

APART = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_DEBUG": "INFO"}  # which says what it goes through


def check_ways(folder):
    """NCCL's own words, of each process in a file of its own."""
    ways = [line for file in folder.iterdir() for line in file.read_text(errors="replace").splitlines() if " via " in line]
    assert ways and all("NET/Socket" in line for line in ways), "not through sockets alone:\n" + "\n".join(ways[:20])
    print(ways[0].split("NCCL INFO ")[-1])


def main():
    own, flags = split_flags(sys.argv[1:])
    parser = argparse.ArgumentParser()
    parser.add_argument("troupe")
    parser.add_argument("model")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args(own)
    shape = ["--tp", "2", "--max-model-len", "1024", *flags]
    if args.device == "cuda":  # sums through NCCL in both, and bits that no batch changes
        shape += ["--batch-invariant", "--kv-cache-memory", "2GiB"]
    with tempfile.TemporaryDirectory() as folder:
        compare(args, shape, pathlib.Path(folder))


def compare(args, shape, folder):
    expected = undisturbed(args.troupe, args.model, "--device", args.device, *shape)
    apart = {**APART, "NCCL_DEBUG_FILE": f"{folder}/%p"}

    def node(address, number):
        sees = {"CUDA_VISIBLE_DEVICES": str(number), **apart} if args.device == "cuda" else {}
        return Node(args.troupe, address, name=f"node-{number}", device=args.device, environment=sees)

    def both(address):
        return [node(address, 0), node(address, 1)]

    with Cluster(args.troupe, args.model, "--slots", "0", *shape, device=args.device, start_nodes=both) as server:
        assert sorted(server.places()) == ["node-0", "node-1"], server.text()
        Load(server).start().expect(expected)
        print("two nodes say what one server with both devices does")

        load, seen = Load(server).start().in_midst(), len(server.text())
        struck = time.monotonic()
        server.nodes[1].stop(signal.SIGKILL)
        noticed = server.wait_text("device lost", since=seen) - struck
        server.nodes.append(node(server.address(), 1))
        up = server.wait_text("up again", since=seen) - struck
        load.expect(expected)
        print(f"a node killed under load: noticed after {noticed:.2f} s, its group up again after {up:.2f} s, with another one in its place")
        if args.device == "cuda":
            check_ways(folder)


main()
