"""Servers to strike at: one on this machine alone, or a head with nodes in network namespaces."""
import contextlib
import dataclasses
import os
import pathlib
import signal
import tempfile
import time

from cluster import Cluster, Node
from faults import NODE_FAULTS, OUT_OF_MEMORY, RANK_FAULTS, send_all
from netns import Network, certify
from server import Server, children_of, wait_until

FLAGS = ["--max-model-len", "1024", "--max-device-restarts", "1000"]


@dataclasses.dataclass
class Victim:
    pid: int  # of a rank
    machine: str = ""  # where that is; empty on this machine alone
    replica: int | None = None  # None: not known yet
    rank: int | None = None
    chance: float = 0.0  # from 0 to 1, for what a fault leaves to chance
    cut_s: float | None = None  # how long it really was cut off


class LocalWorld:
    """A server and its ranks; nothing can happen to a machine."""

    def __init__(self, program, model, flags):
        self.server = Server(program, model, *FLAGS, *flags)
        on_gpu = "cpu" not in flags and pathlib.Path("/dev/nvidiactl").exists()  # which gives memory once, at the start
        self.faults = [f for f in RANK_FAULTS if not (on_gpu and f is OUT_OF_MEMORY)]

    @contextlib.contextmanager
    def running(self):
        with self.server:
            self.learn_shape()
            yield self

    def learn_shape(self):
        self.replicas = int(self.server.metric("troupe_group_up"))
        self.group_size = len(self.pids()) // self.replicas

    def pids(self):
        return sorted(self.server.children())

    def pick(self, randomness, replicas):
        """A rank of one of `replicas`, if it can be told."""
        return Victim(randomness.choice(self.pids()), replica=0 if self.replicas == 1 else None)

    def where(self, replica):
        return []

    def count(self, name, replica):
        return self.server.metric(name, f'replica="{replica}"')

    def own_seconds(self, replica):
        """Of each of its ranks: time of steps that it did not wait for others in."""

        def each(name):
            return [self.server.metric(f"troupe_rank_{name}", f'rank="{rank}",replica="{replica}"') for rank in range(self.group_size)]

        return [step - wait for step, wait in zip(each("step_seconds_sum"), each("collective_wait_seconds_total"))]

    def tells_who_is_slow(self):
        """Not where ranks of a stage meet in collectives all the time: whoever is stopped in one looks like one that waits."""
        return self.server.metric("troupe_rank_lag_seconds_total") == 0

    def is_whole(self):
        return self.server.metric("troupe_group_up") == self.replicas and len(self.pids()) == self.group_size * self.replicas

    def settle(self, seconds=60):
        """Until all groups are up, and all machines are there."""
        wait_until(self.is_whole, lambda: f"not whole again within {seconds} s\n" + self.describe(), seconds)
        self.server.wait_idle()

    def describe(self):
        return self.server.text()[-4000:]


class NodesWorld(LocalWorld):
    """A head without slots and nodes with one each, under mutual TLS; as many machines as network namespaces."""

    faults = RANK_FAULTS + NODE_FAULTS

    def __init__(self, program, model, flags, nodes):
        self.program = program
        self.network = Network([f"n{i}" for i in range(nodes)])
        self.folder = tempfile.TemporaryDirectory()
        self.flags_of = certify(self.folder.name, ["head", *self.network.names])
        shape = ["--slots", "0", "--nodes", str(nodes), *FLAGS, *flags]
        self.server = Cluster(program, model, *shape, *self.flags_of("head"), listen=f"{self.network.bridge}:0", start_nodes=self.start_nodes)

    def make_node(self, name, address):
        return Node(self.program, address, "--slots", "1", *self.flags_of(name), name=name, prefix=self.network.prefix(name))

    def start_nodes(self, address):
        return [self.make_node(name, address) for name in self.network.names]

    def node(self, name):
        return next(node for node in self.server.nodes if node.name == name)

    def pids(self):
        return sorted(pid for node in self.server.nodes for pid in children_of(node.process.pid))

    def pids_of_node(self, victim):
        process = self.node(victim.machine).process
        return [process.pid, *children_of(process.pid)]

    def pick(self, randomness, replicas):
        replica = randomness.choice(replicas)
        places = self.where(replica)
        rank = randomness.randrange(len(places))
        return Victim(randomness.choice(children_of(self.node(places[rank]).process.pid)), places[rank], replica, rank)

    def where(self, replica):
        return self.server.places(replica)

    def is_whole(self):
        return super().is_whole() and self.server.metric("troupe_nodes") == len(self.network.names)

    def describe(self):
        return super().describe() + "\n".join(f"--- {node.name}\n{node.text()[-1500:]}" for node in self.server.nodes)

    # --- what happens to a machine ---

    def kill_node(self, victim):
        self.node(victim.machine).process.kill()

    def start_node(self, victim):
        old = self.node(victim.machine)
        old.process.wait()
        self.server.nodes[self.server.nodes.index(old)] = self.make_node(victim.machine, self.server.address())

    def signal_node(self, victim, number):
        send_all(self.pids_of_node(victim), number)

    def rejoin(self, victim, heal):
        """The node sees for itself that it was given up, and comes back."""
        node = self.node(victim.machine)
        seen = os.path.getsize(node.log.name)
        heal()
        node.wait_for("joined as", since=seen)

    def thaw_node(self, victim):
        self.rejoin(victim, lambda: self.signal_node(victim, signal.SIGCONT))

    def heal_node(self, victim):
        self.rejoin(victim, lambda: self.network.heal(victim.machine))

    def blink(self, victim, seconds):
        begin = time.monotonic()
        self.network.cut(victim.machine)
        time.sleep(seconds)
        self.network.heal(victim.machine)
        victim.cut_s = time.monotonic() - begin

    def squeeze(self, victim, kilobits, seconds):
        self.network.narrow(victim.machine, kilobits)
        time.sleep(seconds)
        self.network.widen(victim.machine)
