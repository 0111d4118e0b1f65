"""Machines as network namespaces, of which nothing can be left over: the whole test runs in namespaces of its own (network, mounts, processes),
which the kernel takes away with its first process, however that ends. So two runs at once have nothing in common either.
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

OUTER = "TROUPE_TEST_OUTER_PID"  # in the environment of the test that runs there: of the process that started it
HEAD = "10.213.77.1"


def skip(why):
    print(f"skipped: {why}")
    raise SystemExit(77)


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def inside():
    return OUTER in os.environ


def outer_pid():
    """Of this run: unlike that of any other one."""
    return int(os.environ.get(OUTER, os.getpid()))


def enter():
    """Returns in the namespaces alone; outside, runs this program there and exits with its code."""
    if inside():
        run("mount", "-t", "tmpfs", "tmpfs", "/run")  # where `ip netns` keeps names
        tempfile.tempdir = "/run"
        run("ip", "link", "set", "lo", "up")
        return
    if os.geteuid() != 0:
        skip("network namespaces need root")
    for command in ("ip", "bridge", "tc", "unshare", "setpriv", "openssl"):
        if not shutil.which(command):
            skip(f"no command {command}")
    words = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
    try:
        run(*words, "true")
    except subprocess.CalledProcessError as failure:
        skip(f"no namespaces here: {failure.stderr.strip()}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    test = subprocess.Popen([*words, sys.executable, *sys.argv], env={**os.environ, OUTER: str(os.getpid())})
    try:
        raise SystemExit(test.wait())
    finally:
        test.kill()  # unshare, which ends all that is in there
        test.wait()


class Network:
    """A bridge, which the head is at, and a namespace with a cable to it for each node."""

    bridge = "bridge0"

    def __init__(self, names):
        self.names = names
        try:
            run("ip", "link", "add", self.bridge, "type", "bridge")
            run("ip", "address", "add", HEAD + "/24", "dev", self.bridge)
            run("ip", "link", "set", self.bridge, "up")
            for number, name in enumerate(names):
                run("ip", "netns", "add", name)
                run("ip", "link", "add", self.cable(name), "type", "veth", "peer", "name", "eth0", "netns", name)
                run("ip", "link", "set", self.cable(name), "master", self.bridge, "up")
                run("ip", "-n", name, "address", "add", f"10.213.77.{2 + number}/24", "dev", "eth0")
                for device in ("eth0", "lo"):
                    run("ip", "-n", name, "link", "set", device, "up")
        except subprocess.CalledProcessError as failure:
            skip(f"no network of namespaces here: {failure.stderr.strip()}")

    @staticmethod
    def cable(name):
        return "to-" + name

    @staticmethod
    def prefix(name):
        """Before a command, to run it on that machine."""
        return ["ip", "netns", "exec", name]

    def cut(self, name):
        """Every packet from and to it vanishes, and nobody is told: its port of the bridge is off, the link stays up."""
        run("bridge", "link", "set", "dev", self.cable(name), "state", "0")

    def heal(self, name):
        run("bridge", "link", "set", "dev", self.cable(name), "state", "3")

    def narrow(self, name, kilobits):
        """No more than that a second, each way."""
        limit = ["root", "tbf", "rate", f"{kilobits}kbit", "burst", "4kb", "latency", "300ms"]
        run("tc", "qdisc", "add", "dev", self.cable(name), *limit)
        run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", *limit)

    def widen(self, name):
        run("tc", "qdisc", "del", "dev", self.cable(name), "root")
        run("ip", "netns", "exec", name, "tc", "qdisc", "del", "dev", "eth0", "root")


def certify(folder, names):
    """Makes an authority, and for each name a certificate; returns what gives a name's flags."""
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]

    def file(name):
        return str(pathlib.Path(folder) / name)

    run("openssl", "req", "-x509", *curve, "-days", "2", "-subj", "/CN=cluster", "-keyout", file("ca.key"), "-out", file("ca.pem"))
    for name in names:
        run("openssl", "req", *curve, "-subj", f"/CN={name}", "-keyout", file(name + ".key"), "-out", file(name + ".csr"))
        signing = ["-CA", file("ca.pem"), "-CAkey", file("ca.key"), "-CAcreateserial", "-days", "2"]
        run("openssl", "x509", "-req", "-in", file(name + ".csr"), *signing, "-out", file(name + ".pem"))
    return lambda name: ["--cluster-cert", file(name + ".pem"), "--cluster-key", file(name + ".key"), "--cluster-ca", file("ca.pem")]
