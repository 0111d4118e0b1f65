"""What can happen to the ranks of a group and to the machines that they are on, and how it is done to real processes."""
import contextlib
import os
import pathlib
import random
import signal
import threading
import time

import netns

PAUSES = 12  # of a slow one: it runs for a fifth of the time, for three seconds
PAUSE_S = 0.2  # shorter than the silence that counts as a loss
BETWEEN_S = 0.05
BLINK_S = 0.3  # so is this, with what TCP needs to send again
NARROW_KBIT = 400


def send_all(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def slow_down(pids):
    for _ in range(PAUSES):
        send_all(pids, signal.SIGSTOP)
        time.sleep(PAUSE_S)
        send_all(pids, signal.SIGCONT)
        time.sleep(BETWEEN_S)


class MemoryGroup:
    """A control group whose processes get no more memory: the kernel kills the first one that asks for a page. It is gone at the end."""

    root = pathlib.Path("/sys/fs/cgroup")
    first = (root / "memory").is_dir()  # version 1 of control groups
    folder = root / "memory" if first else root
    limit, events = ("memory.limit_in_bytes", "memory.oom_control") if first else ("memory.max", "memory.events")
    swap = "memory.swappiness" if first else "memory.swap.max"
    prefix = "troupe-test-"  # and who made it

    def __init__(self):
        self.path = self.folder / f"{self.prefix}{netns.outer_pid()}"

    def __enter__(self):
        self.path.mkdir()
        try:
            (self.path / self.limit).write_text("65536")
            with contextlib.suppress(OSError):  # where swapping is left out of the kernel
                (self.path / self.swap).write_text("0")
        except OSError:
            self.path.rmdir()
            raise
        return self

    def __exit__(self, *_):
        for pid in (self.path / "cgroup.procs").read_text().split():  # it was not killed
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                (self.folder / "cgroup.procs").write_text(pid)
        self.remove(self.path)

    @staticmethod
    def remove(path):
        for _ in range(500):  # the kernel lets go of a process a moment after its end
            try:
                return path.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.01)
        raise AssertionError(f"{path} is still in use")

    @classmethod
    def remove_leftovers(cls):
        """Of this run, and of others that were killed; to be called outside of the namespaces, where all processes can be seen."""
        for path in cls.folder.glob(cls.prefix + "*"):
            maker = path.name.removeprefix(cls.prefix)
            if maker == str(os.getpid()) or not pathlib.Path("/proc", maker).exists():
                cls.remove(path)

    def take(self, pid):
        (self.path / "cgroup.procs").write_text(str(pid))

    def kills(self):
        lines = (self.path / self.events).read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def memory_can_be_limited():
    try:
        with MemoryGroup():
            return True
    except OSError:
        return False


@contextlib.contextmanager
def long_prompts(server):
    """One after another, each a new one: they fill places of the KV cache that nothing was in yet."""
    done, answers = threading.Event(), []

    def ask():
        while not done.is_set():
            prompt = " ".join(random.choice("abcdefgh") for _ in range(400))
            answers.append(server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        done.set()
        asking.join()
    assert all(status == 200 for status, _ in answers), answers


def run_out_of_memory(world, victim):
    """What the rank has stays; for the next page that it touches the kernel finds no memory, and kills it. Returns when."""
    with MemoryGroup() as group, long_prompts(world.server):
        group.take(victim.pid)
        deadline = time.monotonic() + 30
        while not group.kills():
            assert time.monotonic() < deadline, "the rank asked for no memory"
            time.sleep(0.003)
        return time.monotonic()


def kill_again(world, victim):
    """And another rank of the group that takes its place, while that starts."""
    before = world.pids()
    send_all([victim.pid], signal.SIGKILL)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        fresh = [pid for pid in world.pids() if pid not in before]
        if len(fresh) == world.group_size:
            return send_all(fresh[-1:], signal.SIGKILL)
        time.sleep(0.002)
    raise AssertionError("no other group started")


def signalled(number):
    return lambda world, victim: send_all([victim.pid], number)


class Fault:
    """`strike(world, victim)` does it, and returns when it happened if that was later. `heal`, if any, makes it good a while later."""

    def __init__(self, name, strike, heal=None, losses=(1, 1), of_node=False, slow=False):
        self.name, self.strike, self.heal = name, strike, heal
        self.losses = losses  # how often the victim's group must form anew at least, and may at most
        self.of_node = of_node
        self.slow = slow  # the metrics can tell who it was


OUT_OF_MEMORY = Fault("rank out of memory (killed by the kernel: its control group has no page left)", run_out_of_memory)

RANK_FAULTS = [
    Fault("rank killed (SIGKILL)", signalled(signal.SIGKILL)),
    Fault("rank frozen (SIGSTOP)", signalled(signal.SIGSTOP)),
    Fault("rank's device fails (its process crashes: SIGSEGV)", signalled(signal.SIGSEGV)),
    OUT_OF_MEMORY,
    Fault("rank killed, and one of the next group while that starts", kill_again, losses=(1, 2)),
    Fault("rank slow (a fifth of its speed for 3 s)", lambda w, v: slow_down([v.pid]), losses=(0, 0), slow=True),
]

NODE_FAULTS = [
    Fault("node killed (SIGKILL), started again", lambda w, v: w.kill_node(v), lambda w, v: w.start_node(v), of_node=True),
    Fault("node frozen with its ranks, thawed", lambda w, v: w.signal_node(v, signal.SIGSTOP), lambda w, v: w.thaw_node(v), of_node=True),
    Fault("node cut off, and healed", lambda w, v: w.network.cut(v.machine), lambda w, v: w.heal_node(v), of_node=True),
    Fault(f"node cut off for {BLINK_S} s", lambda w, v: w.blink(v, BLINK_S), losses=(0, 0), of_node=True),
    Fault("node cut off for 0.4 to 1.0 s, which may be noticed or not", lambda w, v: w.blink(v, 0.4 + 0.6 * v.chance), losses=(0, 1), of_node=True),
    Fault("node slow (a fifth of its speed for 3 s)", lambda w, v: slow_down(w.pids_of_node(v)), losses=(0, 0), of_node=True, slow=True),
    Fault(f"node's network slow ({NARROW_KBIT} kbit/s for 3 s)", lambda w, v: w.squeeze(v, NARROW_KBIT, 3), losses=(0, 0), of_node=True),
]
