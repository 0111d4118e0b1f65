"""A troupe server for tests: started on a free port, probed until ready, stopped with SIGTERM. Standard library only."""
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time
import urllib.parse


def split_flags(words):
    """The words before "--", and those behind it: flags for somebody else."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def wait_for_text(path, pattern, seconds=60, since=0):
    """The moment (of time.monotonic()) at which a log has that after its first `since` bytes."""
    deadline = time.monotonic() + seconds
    while True:
        with open(path, "rb") as log:
            log.seek(since)
            if re.search(pattern, log.read().decode(errors="replace"), re.MULTILINE):
                return time.monotonic()
        if time.monotonic() > deadline:
            raise AssertionError(f"no {pattern!r} within {seconds} s in\n{pathlib.Path(path).read_text(errors='replace')}")
        time.sleep(0.003)


def wait_until(done, said, seconds=30):
    """Until `done()`; after too long it fails with what `said()` returns."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, said()
        time.sleep(0.02)


class Watch:
    """Looks out for a line in a server's log from now on, on a thread of its own."""

    def __init__(self, server, pattern, seconds=60):
        self.moment = None
        since = os.path.getsize(server.log.name)

        def look():
            try:
                self.moment = server.wait_text(pattern, seconds, since)
            except AssertionError:
                pass

        self.thread = threading.Thread(target=look)
        self.thread.start()

    def wait(self):
        """When it was there; None: not in time."""
        self.thread.join()
        return self.moment


def all_children_of(pid):
    """Process ids of the children of all threads of a process, whatever they run."""
    pids = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            pids += map(int, (task / "children").read_text().split())
        except OSError:  # the thread has ended meanwhile
            pass
    return pids


def stands_by(pid, words):
    """Whether a worker has not been called yet (it then takes another name)."""
    return b"--stand-by-for" in words and pathlib.Path(f"/proc/{pid}/comm").read_text() != "troupe rank\n"


def children_of(pid, command="worker"):
    """Process ids of the children that run `troupe COMMAND`: "worker" (those that are ranks), "standby" (those that are not) or "keeper"."""
    pids = []
    for child in all_children_of(pid):
        try:
            words = pathlib.Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            runs = words[1].decode() if len(words) > 1 else ""
            runs = "standby" if runs == "worker" and stands_by(child, words) else runs
        except OSError:  # it has just gone
            continue
        if runs == command:
            pids.append(child)
    return pids


class Server:
    """`with Server(program, model, "--flag", ...) as server:`; leaving it checks for a clean exit."""

    def __init__(self, program, model, *flags):
        self.log = tempfile.NamedTemporaryFile(mode="w+", suffix=".log")
        self.process = subprocess.Popen([program, "serve", model, "--port", "0", *flags], stderr=self.log, stdout=self.log)
        self.url = None

    def text(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def wait_text(self, pattern, seconds=60, since=0):
        return wait_for_text(self.log.name, pattern, seconds, since)

    def __enter__(self):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            found = re.search(r"listening on (http://\S+)", self.text())
            if found:
                self.url = found.group(1)
                try:
                    if self.get("/readyz")[0] == 200:
                        return self
                except OSError:
                    pass
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        self.process.kill()
        raise RuntimeError("the server did not get ready:\n" + self.text())

    def __exit__(self, kind, value, trace):
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = "none within 60 s"
        if kind is not None:
            print(self.text()[-4000:])
        assert kind is not None or code == 0, f"exit code {code}\n{self.text()[-4000:]}"

    # --- requests ---

    def connect(self, timeout=120):
        return http.client.HTTPConnection(urllib.parse.urlparse(self.url).netloc, timeout=timeout)

    def get(self, path, headers=None):
        connection = self.connect()
        connection.request("GET", path, headers=headers or {})
        reply = connection.getresponse()
        return reply.status, reply.read().decode()

    def post(self, path, body, headers=None):
        """(status, parsed JSON) of a whole answer."""
        connection = self.connect()
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())

    def stream(self, path, body, on_event=None):
        """All events of a streamed answer. `on_event` may return True to hang up; the events so far come back."""
        connection = self.connect()
        connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        assert reply.status == 200, (reply.status, reply.read())
        events = []
        for line in reply:
            data = line.decode().strip()
            if not data:
                continue
            assert data.startswith("data: "), data
            if data == "data: [DONE]":
                connection.close()
                return events
            events.append(json.loads(data[6:]))
            assert "error" not in events[-1], events[-1]
            if on_event and on_event(events[-1]):
                reply.close()
                connection.close()
                return events
        raise AssertionError("the stream broke off")

    def metric(self, name, labels=""):
        """Sum of the series whose name is `name` and whose label text contains `labels`."""
        total = 0.0
        for line in self.get("/metrics")[1].splitlines():
            match = re.match(rf"{name}(\{{[^}}]*\}})? (\S+)$", line)
            if match and labels in (match.group(1) or ""):
                total += float(match.group(2))
        return total

    def wait_metric(self, name, value, labels="", seconds=30):
        """Counts may be told a second late."""

        def said():
            return f"{name} is {self.metric(name, labels)}, not {value}, in\n{self.text()}"

        wait_until(lambda: self.metric(name, labels) == value, said, seconds)

    def rss_bytes(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) * 1024

    def children(self, command="worker"):
        return children_of(self.process.pid, command)

    def other_keeper(self, than):
        """The keeper, once it is another one."""
        wait_until(lambda: self.children("keeper") not in ([], [than]), self.text)
        (keeper,) = self.children("keeper")
        return keeper

    def wait_idle(self, seconds=30):
        """Until nothing runs or waits and every KV block is free or cached."""

        def busy():
            return self.metric("troupe_requests_running") + self.metric("troupe_requests_waiting") + self.metric("troupe_kv_blocks", 'state="used"')

        def said():
            return "not idle: " + "\n".join(l for l in self.get("/metrics")[1].splitlines() if "troupe_kv" in l or "troupe_requests" in l)

        wait_until(lambda: busy() == 0, said, seconds)
