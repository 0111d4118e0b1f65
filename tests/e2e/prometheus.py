#!/usr/bin/env python3
"""Scrapes Troupe with a real Prometheus and asks it questions.

prometheus.py --url http://127.0.0.1:8000           a running server; it is sent a few requests, whose effect on the counters is checked
prometheus.py --render BUILD/tests/render_metrics   the metrics class alone, behind a small HTTP server

Checks: promtool on the exposition, the scrape configuration and the rules (with their unit tests); every troupe_* series of the
text is in Prometheus with the value of the text; the median time to first token that Prometheus computes; every rule and every query
of the Grafana dashboard runs and names only metrics that exist. --expect adds PromQL comparisons that have to hold.
Exit code: 0, 1 when a check failed, 77 when prometheus or promtool is not installed.
"""
import argparse
import http.server
import json
import math
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus/troupe_rules.yml"
DASHBOARD = ROOT / "deploy/grafana/troupe.json"
DEADLINE = time.monotonic() + 120


class Failed(Exception):
    pass


def check(holds, what):
    if not holds:
        raise Failed(what)


def wait_for(what, attempt, seconds=30):
    """Calls attempt() until it returns something true; errors of the network count as not yet."""
    end = min(time.monotonic() + seconds, DEADLINE)
    while time.monotonic() < end:
        try:
            if found := attempt():
                return found
        except OSError:
            pass
        time.sleep(0.1)
    raise Failed(f"timed out: {what}")


def fetch(url, key=""):
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode(), answer.headers.get("Content-Type", "")


def promtool(*arguments, text=None, cwd=None):
    done = subprocess.run(["promtool", *arguments], input=text, cwd=cwd, text=True, capture_output=True, timeout=60)
    check(done.returncode == 0, f"promtool {' '.join(map(str, arguments))}: {done.stdout}{done.stderr}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def parse(text):
    """Exposition text to ({(name, labels): value}, {family: type})."""
    samples, types = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            types[name] = kind
        elif line and not line.startswith("#"):
            series, value = line.rsplit(" ", 1)
            name, _, labels = series.partition("{")
            pairs = frozenset((key, re.sub(r"\\.", lambda m: ESCAPES[m[0]], raw)) for key, raw in LABEL.findall(labels))
            samples[name, pairs] = float(value)
    return samples, types


def only(samples):
    return {key: value for key, value in samples.items() if key[0].startswith("troupe_")}


class Rendered:
    """Serves what the program prints; one round more at every scrape until it is frozen."""

    def __init__(self, program):
        self.program, self.rounds, self.frozen = program, 4, False
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                if not outer.frozen:
                    outer.rounds += 1
                body = subprocess.run([outer.program, str(outer.rounds)], check=True, capture_output=True, timeout=10).stdout
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Prometheus:
    def __init__(self, folder, target, key):
        self.url = f"http://127.0.0.1:{free_port()}"
        parts = urllib.parse.urlsplit(target)
        job = {"job_name": "troupe", "scheme": parts.scheme, "metrics_path": parts.path.rstrip("/") + "/metrics",
               "static_configs": [{"targets": [parts.netloc]}]}
        if key:
            (folder / "key").write_text(key)
            job["authorization"] = {"credentials_file": str(folder / "key")}
        config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                  "rule_files": [str(RULES)], "scrape_configs": [job]}
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        self.log = open(folder / "log", "w+")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address={urllib.parse.urlsplit(self.url).netloc}", "--log.level=warn"],
            stdout=self.log, stderr=subprocess.STDOUT)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def ready(self):
        check(self.process.poll() is None, f"prometheus ended: {pathlib.Path(self.log.name).read_text()[-2000:]}")
        return fetch(self.url + "/-/ready")

    def api(self, path, **query):
        text, _ = fetch(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}")
        return json.loads(text)["data"]

    def query(self, expression):
        """Instant vector as {(name, labels): value}; labels that scraping adds are left out."""
        try:
            found = self.api("query", query=expression)
        except urllib.error.HTTPError as refusal:
            raise Failed(f"query {expression}: {refusal.read().decode()}")
        out = {}
        for row in found["result"]:
            labels = dict(row["metric"])
            name = labels.pop("__name__", "")
            for added in ("instance", "job"):
                labels.pop(added, None)
            out[name, frozenset(labels.items())] = float(row["value"][1])
        return out


def series_text(key):
    return key[0] + "{" + ",".join(f'{k}="{v}"' for k, v in sorted(key[1])) + "}"


def check_values(prometheus, read_text):
    """What Prometheus holds lies between a text from before its last scrape and one from after it."""
    before, types = parse(read_text())
    began = time.time()
    wait_for("a scrape", lambda: min(prometheus.query("timestamp(up) and up == 1").values(), default=0) > began, 15)
    held = prometheus.query('{__name__=~"troupe_.+"}')
    before, after = only(before), only(parse(read_text())[0])
    check(held.keys() == after.keys(), f"series differ: {sorted(map(series_text, held.keys() ^ after.keys()))[:5]}")
    for key, value in held.items():
        base = re.sub("_(bucket|sum|count)$", "", key[0])
        if types.get(key[0]) == "counter" or types.get(base) == "histogram":
            check(before[key] <= value <= after[key], f"{series_text(key)}: {before[key]} <= {value} <= {after[key]} does not hold")
        elif before == after:  # nothing happens at the server, so its gauges stand still
            check(value == after[key], f"{series_text(key)}: {value} is not {after[key]}")
    return len(held)


def median_of(samples, family):
    """histogram_quantile(0.5, sum by (le)) as Prometheus defines it: linear inside the bucket that holds the rank."""
    buckets = {}
    for (name, labels), value in samples.items():
        if name == family + "_bucket":
            bound = float(dict(labels)["le"].replace("+Inf", "inf"))
            buckets[bound] = buckets.get(bound, 0) + value
    bounds = sorted(buckets)
    rank = 0.5 * buckets[bounds[-1]]
    if rank == 0:
        return math.nan
    lower, below = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= rank:
            return lower if math.isinf(bound) else lower + (bound - lower) * (rank - below) / (buckets[bound] - below)
        lower, below = bound, buckets[bound]


def check_median(prometheus, family):
    held = prometheus.query('{__name__="%s_bucket"}' % family)
    answers = prometheus.query(f"histogram_quantile(0.5, sum by (le) ({family}_bucket))")
    check(len(answers) == 1, f"no median of {family}")
    (found,), wanted = answers.values(), median_of(held, family)
    again = prometheus.query('{__name__="%s_bucket"}' % family)
    if held == again:  # no scrape in between
        same = math.isclose(found, wanted, rel_tol=1e-9) or (math.isnan(found) and math.isnan(wanted))
        check(same, f"median of {family}: {found} is not {wanted}")
    return found


def dashboard_queries():
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            text = target["expr"]
            for variable, value in (("$__rate_interval", "1m"), ("$model", ".*"), ("$instance", ".*")):
                text = text.replace(variable, value)
            yield panel["title"], text


def check_queries(prometheus, types):
    known = set(types)
    for name, kind in types.items():
        if kind == "histogram":
            known |= {name + suffix for suffix in ("_bucket", "_sum", "_count")}
    count = 0
    for title, text in dashboard_queries():
        prometheus.query(text)
        strange = set(re.findall(r"\b(?:troupe|process)_[a-z0-9_]+", text)) - known
        check(not strange, f"dashboard panel '{title}' names unknown metrics {strange}")
        count += 1
    def rules_ran():
        rules = [rule for group in prometheus.api("rules")["groups"] for rule in group["rules"]]
        check(all(rule["health"] != "err" for rule in rules), f"rules failed: {[r for r in rules if r['health'] == 'err']}")
        return bool(rules) and all(rule["health"] == "ok" for rule in rules) and rules

    rules = wait_for("the rules to be evaluated", rules_ran)
    for rule in rules:
        strange = set(re.findall(r"(?<![:\w])troupe_[a-z0-9_]+", rule["query"])) - known
        check(not strange, f"the rule {rule['name']} names unknown metrics {strange}")
    return count, len(rules)


def check_rendered(prometheus, source):
    """The known load of render_metrics: exact answers."""
    source.frozen = True
    wait_for("the last round", lambda: set(prometheus.query("troupe_prompt_tokens_total").values()) == {12.0 * source.rounds}, 15)
    for expression in (f"sum(troupe_requests_total) == {2 * source.rounds}",
                       f'troupe_requests_total{{outcome="stop",model="demo \\"quoted\\""}} == {source.rounds}',
                       "troupe_cached_tokens_total / troupe_prompt_tokens_total > 0.33 < 0.34",
                       f"troupe_generation_tokens_total == {9 * source.rounds}",
                       "histogram_quantile(0.99, troupe_time_to_first_token_seconds_bucket) > 0.03 < 0.05",
                       "histogram_quantile(0.5, troupe_inter_token_latency_seconds_bucket) > 0.0015 <= 0.002",
                       "histogram_quantile(0.5, troupe_time_per_output_token_seconds_bucket) > 0.0015 <= 0.002",
                       "rate(troupe_requests_total{outcome=\"stop\"}[1m]) > 0",
                       'sum(troupe_kv_blocks) == 100', "troupe_kv_usage_ratio == 0.4", "troupe_ready == 1",
                       "troupe_nodes == 2", 'troupe_node_missing{node="c"} == 1', 'troupe_group_waits_for_slots{replica="1"} == 1'):
        check(prometheus.query(expression), f"does not hold: {expression}")
    # What stands in the legend of a panel, by its query: the head's two slots and one of a are held, one of a is spare, b's is nobody's.
    held, spare, leaving = (sum(prometheus.query(text).values()) for title, text in dashboard_queries() if title == "Slots")
    check((held, spare, leaving) == (3, 1, 1), f"the panel of slots says {held} held, {spare} spare, {leaving} on machines that leave")
    wait_for("the recorded spare slots", lambda: set(prometheus.query("instance_model:troupe_spare_slots:sum").values()) == {1.0}, 15)


def send_requests(url, key, count):
    """Streams `count` short completions; the tokens that the server says it generated for them."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    model = json.loads(fetch(url + "/v1/models", key)[0])["data"][0]["id"]
    generated = 0
    for number in range(count):
        body = {"model": model, "prompt": f"{number} is a number. Another number is", "max_tokens": 8, "ignore_eos": True,
                "stream": True, "stream_options": {"include_usage": True}}
        request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            events = [json.loads(line[6:]) for line in answer.read().decode().splitlines() if line.startswith("data: {")]
        generated += next(event["usage"]["completion_tokens"] for event in reversed(events) if event.get("usage"))
    return generated


def check_effect(prometheus, url, key, count):
    """The server's own requests show in Prometheus: each is one request, one first token, and its tokens."""
    counters = {"requests": 'sum(troupe_requests_total{outcome=~"stop|length"})', "tokens": "sum(troupe_generation_tokens_total)",
                "first tokens": "sum(troupe_time_to_first_token_seconds_count)", "whole times": "sum(troupe_request_seconds_count)",
                "prompts": "sum(troupe_prompt_tokens_total)"}

    def read():
        return {name: sum(prometheus.query(text).values()) for name, text in counters.items()}

    before = read()
    generated = send_requests(url, key, count)
    least = {"requests": count, "tokens": generated, "first tokens": count, "whole times": count, "prompts": count}
    latest = {}

    def arrived():
        latest.update(read())
        return all(latest[name] - before[name] >= least[name] for name in counters)

    try:
        wait_for("", arrived, 15)
    except Failed:
        raise Failed(f"after {count} requests with {generated} tokens the counters went from {before} to {latest}") from None


def run(url, key, expectations, rendered, requests):
    def read_text():
        return fetch(url + "/metrics", key)[0]

    text, content_type = fetch(url + "/metrics", key)
    check(content_type.startswith("text/plain"), f"/metrics has the content type '{content_type}'")
    promtool("check", "metrics", text=text)
    promtool("check", "config", "prometheus.yml", cwd=RULES.parent)
    promtool("check", "rules", RULES)
    promtool("test", "rules", "troupe_rules_test.yml", cwd=RULES.parent)
    _, types = parse(text)
    with tempfile.TemporaryDirectory() as folder:
        prometheus = Prometheus(pathlib.Path(folder), url, key)
        try:
            wait_for("prometheus to be ready", prometheus.ready)
            wait_for("the first scrape", lambda: set(prometheus.query("up").values()) == {1.0})
            if requests:
                check_effect(prometheus, url, key, requests)
            series = check_values(prometheus, read_text)
            median = check_median(prometheus, "troupe_time_to_first_token_seconds")
            check(not (requests and math.isnan(median)), "there is no median of the time to first token")
            queries, rules = check_queries(prometheus, types)
            if rendered:
                check_rendered(prometheus, rendered)
            for expression in expectations:
                check(prometheus.query(expression), f"does not hold: {expression}")
        finally:
            prometheus.stop()
    print(f"{series} series scraped, {queries} dashboard queries and {rules} rules evaluated, "
          f"{len(expectations)} expectations hold; median time to first token: {median:.4g} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--url", help="of a running server, without /metrics")
    source.add_argument("--render", help="the program render_metrics")
    parser.add_argument("--api-key", default=os.environ.get("TROUPE_API_KEY", ""))
    parser.add_argument("--requests", type=int, default=4, help="how many requests to send to --url; 0 for none")
    parser.add_argument("--expect", action="append", default=[], metavar="PROMQL", help="must return something, as in 'sum(x) >= 5'")
    arguments = parser.parse_args()
    missing = [tool for tool in ("prometheus", "promtool") if not shutil.which(tool)]
    if missing:
        print(f"skipped: {' and '.join(missing)} not installed")
        return 77
    rendered = Rendered(arguments.render) if arguments.render else None
    try:
        run((arguments.url or rendered.url).rstrip("/"), arguments.api_key, arguments.expect, rendered,
            0 if rendered else arguments.requests)
    except (Failed, OSError, subprocess.SubprocessError) as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
