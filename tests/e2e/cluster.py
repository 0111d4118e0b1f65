"""`troupe serve` as the head of a cluster, and `troupe node` processes."""
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

from server import Server, wait_for_text

TOKEN = "a token that only this test knows"


class Node:
    """A `troupe node` process; `prefix` is a command that becomes it, `environment` what it has beside this process's."""

    def __init__(self, program, head, *flags, name=None, token=TOKEN, prefix=(), device="cpu", environment=(), folder=None):
        self.name = name
        self.log = tempfile.NamedTemporaryFile(mode="w+", suffix=".log")
        words = [*prefix, program, "node", "--join", head, "--device", device, *flags]
        if name:
            words += ["--name", name]
        everything = {**os.environ, **dict(environment)}
        everything.pop("TROUPE_CLUSTER_TOKEN", None)
        if token:
            everything["TROUPE_CLUSTER_TOKEN"] = token
        self.process = subprocess.Popen(words, stderr=self.log, stdout=self.log, env=everything, cwd=folder)

    def text(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def wait_for(self, pattern, seconds=60, since=0):
        wait_for_text(self.log.name, pattern, seconds, since)

    def stop(self, number=signal.SIGTERM, seconds=60):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()


class Cluster(Server):
    """A head that is ready as soon as enough nodes have come: `start_nodes` makes them, given the address to join at."""

    def __init__(self, program, model, *flags, listen="127.0.0.1:0", start_nodes=lambda address: [], device="cpu"):
        os.environ["TROUPE_CLUSTER_TOKEN"] = TOKEN
        super().__init__(program, model, "--device", device, "--cluster-listen", listen, *flags)
        self.nodes = []
        self.start_nodes = start_nodes

    def address(self):
        self.wait_text(r"nodes join at \S+")
        return re.search(r"nodes join at (\S+)", self.text()).group(1)

    def __enter__(self):
        try:
            self.nodes = self.start_nodes(self.address())
            return super().__enter__()
        except BaseException:
            self.process.kill()
            self.close_nodes()
            raise

    def close_nodes(self, lines=False):
        for node in self.nodes:
            if lines:
                print(node.text()[-2000:])
            node.close()

    def __exit__(self, kind, value, trace):
        try:
            super().__exit__(kind, value, trace)
        finally:
            self.close_nodes(lines=kind is not None)

    def places(self, replica=0):
        """The names of the machines of a group's ranks, as the log said last."""
        said = [line for line in self.text().splitlines() if re.search(r"\bup( again[^:]*)?: rank 0 on ", line)]
        prefix = f"replica {replica}: "
        mine = [line for line in said if "replica " not in line or prefix in line]
        return re.findall(r"rank \d+ on (\S+?)(?:,|$)", mine[-1]) if mine else []
