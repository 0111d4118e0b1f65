#!/usr/bin/env python3
"""A head and two nodes, each in a network namespace of its own, joined by a bridge; two
stages across the nodes, under mutual TLS.

The cable of a node is pulled in mid-stream, and put back: the loss is noticed within two seconds, the node comes back by itself, no request is
lost and no token differs. Needs root and the commands ip and openssl; exits with 77 (skipped) where namespaces are not to be had.

usage: nodes_netns.py TROUPE MODEL [--rounds 2]
"""
import argparse
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import tempfile
import time

from nodes import Cluster, Load, Node, undisturbed

DETECTION_LIMIT_S = 2.0
NETWORK = "10.213.77."


def skip(why):
    print(f"skipped: {why}")
    raise SystemExit(77)


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


class Network:
    """A bridge at the head's side (this process's own namespace), and one namespace for each node."""

    def __init__(self, names):
        self.tag = f"{os.getpid() % 10000}"
        self.bridge = f"trp{self.tag}"
        self.names = names

    def space(self, name):
        return f"troupe-{self.tag}-{name}"

    def address(self, name):
        return NETWORK + str(2 + self.names.index(name))

    def __enter__(self):
        try:
            run("ip", "link", "add", self.bridge, "type", "bridge")
            run("ip", "address", "add", NETWORK + "1/24", "dev", self.bridge)
            run("ip", "link", "set", self.bridge, "up")
            for name in self.names:
                here, there = f"t{self.tag}{name}", "eth0"
                run("ip", "netns", "add", self.space(name))
                run("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", self.space(name))
                run("ip", "link", "set", here, "master", self.bridge, "up")
                for words in [["address", "add", self.address(name) + "/24", "dev", there], ["link", "set", there, "up"], ["link", "set", "lo", "up"]]:
                    run("ip", "-n", self.space(name), *words)
        except (subprocess.CalledProcessError, FileNotFoundError) as failure:
            self.__exit__()
            skip(f"no network namespaces here: {getattr(failure, 'stderr', None) or failure}")
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", self.space(name)], capture_output=True)
            subprocess.run(["ip", "link", "del", f"t{self.tag}{name}"], capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)

    def cut(self, name):
        run("ip", "link", "set", f"t{self.tag}{name}", "down")

    def heal(self, name):
        run("ip", "link", "set", f"t{self.tag}{name}", "up")

    def prefix(self, name):
        return ["ip", "netns", "exec", self.space(name)]


def certify(folder, names):
    """An authority and a certificate for each name; the flags of each."""
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    file = lambda name: str(pathlib.Path(folder) / name)
    run("openssl", "req", "-x509", *curve, "-days", "2", "-subj", "/CN=cluster", "-keyout", file("ca.key"), "-out", file("ca.pem"))
    for name in names:
        run("openssl", "req", *curve, "-subj", f"/CN={name}", "-keyout", file(name + ".key"), "-out", file(name + ".csr"))
        run("openssl", "x509", "-req", "-in", file(name + ".csr"), "-CA", file("ca.pem"), "-CAkey", file("ca.key"), "-CAcreateserial", "-days", "2", "-out", file(name + ".pem"))
    return lambda name: ["--cluster-cert", file(name + ".pem"), "--cluster-key", file(name + ".key"), "--cluster-ca", file("ca.pem")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("troupe")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    if os.geteuid() != 0:
        skip("not root")
    if not shutil.which("openssl"):
        skip("no openssl")
    texts = undisturbed(args.troupe, args.model)
    with Network(["a", "b"]) as network, tempfile.TemporaryDirectory() as folder:
        flags = certify(folder, ["head", "a", "b"])

        def start(address):
            return [Node(args.troupe, address, *flags(name), name=name, prefix=network.prefix(name)) for name in network.names]

        shape = ["--pp", "2", "--slots", "0", "--max-device-restarts", "1000"]
        with Cluster(args.troupe, args.model, *shape, *flags("head"), listen=network.bridge + ":0", start_nodes=start) as server:
            assert network.address("a") in server.text(), server.text()  # where its ranks talk
            Load(server).start().expect(texts)
            noticed, resumed = [], []
            for _ in range(args.rounds):
                for number, name in enumerate(network.names):
                    load, seen, joined = Load(server).start().in_midst(), len(server.text()), len(server.nodes[number].text())
                    struck = time.monotonic()
                    network.cut(name)
                    server.wait_text("device lost", since=seen)
                    noticed.append(time.monotonic() - struck)
                    server.wait_text("waits for slots", since=seen)
                    time.sleep(0.5)
                    healed = time.monotonic()
                    network.heal(name)
                    server.nodes[number].wait_for("joined as", since=joined)
                    load.expect(texts)
                    resumed.append(time.monotonic() - healed)
            assert max(noticed) < DETECTION_LIMIT_S, noticed
            print(f"cut off {len(noticed)} times: noticed after {statistics.median(noticed):.2f} s ({max(noticed):.2f} s at most); all answers complete "
                  f"{statistics.median(resumed):.1f} s after healing; requests lost: 0, texts that differ: 0")


if __name__ == "__main__":
    main()
