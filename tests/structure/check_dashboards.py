#!/usr/bin/env python3
"""Checks deploy/grafana and deploy/prometheus against docs/metrics.md, which a test of the program holds true: every metric that a panel, a rule or a
rule's test names exists, panels have ids of their own and do not lie on each other, and every alert has a test that makes it fire.

usage: check_dashboards.py ROOT
"""
import itertools
import json
import pathlib
import re
import sys


def known_metrics(root):
    known = set()
    for name, kind in re.findall(r"^\| `(\w+)` \| (\w+) \|", (root / "docs/metrics.md").read_text(encoding="utf-8"), re.M):
        known |= {name + suffix for suffix in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
    return known


def named_in(text):
    """Metric names; a recording rule's has colons."""
    return set(re.findall(r"(?<![\w:])(?:troupe|process)_[a-z0-9_]+(?![\w:])", text))


def overlap(a, b):
    return a["x"] < b["x"] + b["w"] and b["x"] < a["x"] + a["w"] and a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"]


def check_dashboard(path, known):
    panels = json.loads(path.read_text(encoding="utf-8"))["panels"]
    for panel in panels:
        for target in panel.get("targets", []):
            for name in sorted(named_in(target["expr"]) - known):
                yield f"{path.name}: panel '{panel['title']}' names {name}, which does not exist"
    for a, b in itertools.combinations(panels, 2):
        if a["id"] == b["id"]:
            yield f"{path.name}: panels '{a['title']}' and '{b['title']}' have the same id"
        if overlap(a["gridPos"], b["gridPos"]):
            yield f"{path.name}: panels '{a['title']}' and '{b['title']}' lie on each other"


def check_rules(folder, known):
    rules, tests = ((folder / name).read_text(encoding="utf-8") for name in ("troupe_rules.yml", "troupe_rules_test.yml"))
    for block in re.split(r"^\s*- (?=alert:|record:)", rules, flags=re.M)[1:]:
        title = block.split("\n", 1)[0].strip()
        expression = re.search(r"^\s*expr:(.*?)(?=^\s*(?:for|labels|annotations):|\Z)", block, re.M | re.S)[1]
        for name in sorted(named_in(expression) - known - {"troupe_figures", "troupe_alerts"}):
            yield f"troupe_rules.yml: {title} names {name}, which does not exist"
        alert = re.match(r"alert: (\w+)", block)
        if alert and not re.search(rf"alertname: {alert[1]}\s+exp_alerts:", tests):
            yield f"troupe_rules_test.yml: nothing makes {alert[1]} fire"
    for series in re.findall(r"series: '(\w+)", tests):
        if series not in known and series != "up":
            yield f"troupe_rules_test.yml: the series {series} does not exist"


def main():
    root = pathlib.Path(sys.argv[1])
    known = known_metrics(root)
    faults = list(check_rules(root / "deploy/prometheus", known))
    for path in sorted((root / "deploy/grafana").glob("*.json")):
        faults += check_dashboard(path, known)
    print("\n".join(faults) or f"dashboards and rules name only what is among {len(known)} series' names")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
