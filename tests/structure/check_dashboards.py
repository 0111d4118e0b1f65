#!/usr/bin/env python3
"""Checks deploy/grafana and deploy/prometheus against docs/metrics.md, which a test of the program holds true: every metric that a panel, a rule or a
rule's test names exists and has the labels that it is asked for, every metric of Troupe is on some panel, panels have ids of their own and do not lie on
each other, and every alert has a test that makes it fire.

usage: check_dashboards.py ROOT
"""
import itertools
import json
import pathlib
import re
import sys

SCRAPED = {"instance", "job"}  # labels that Prometheus adds to every series


def documented(root):
    """Rows of the table: name, type, unit, set of labels."""
    row = re.compile(r"^\| `(\w+)` \| (\w+) \| (\w+) \| ([\w, ]*?) *\|", re.M)
    for name, kind, unit, labels in row.findall((root / "docs/metrics.md").read_text(encoding="utf-8")):
        yield name, kind, unit, set(re.findall(r"\w+", labels))


def known_metrics(root):
    """The labels of each series name."""
    known = {}
    for name, kind, _, labels in documented(root):
        if kind == "histogram":
            known |= {name + "_bucket": labels | {"le"}, name + "_sum": labels, name + "_count": labels}
        else:
            known[name] = labels
    return known


def named_in(text):
    """Metric names; a recording rule's has colons."""
    return set(re.findall(r"(?<![\w:])(?:troupe|process)_[a-z0-9_]+(?![\w:])", text))


def faults_of(expression, known):
    """What is wrong with the names and labels of a query."""
    names = named_in(expression)
    for name in sorted(names - known.keys()):
        yield f"names {name}, which does not exist"
    for name, selector in re.findall(r"(?<![\w:])(\w+)\{([^}]*)\}", expression):
        for label in sorted(set(re.findall(r"(\w+) *[=!]", selector)) - known.get(name, set()) - SCRAPED):
            yield f"asks {name} for the label {label}, which it has not"
    if any(":" in word for word in re.findall(r"[\w:]+", re.sub(r"\[[^]]*\]", "", expression))):
        return  # a recording rule's labels are its own
    labels = SCRAPED.union(*(known.get(name, set()) for name in names))
    for listed in re.findall(r"\b(?:by|on|without|ignoring) *\(([^)]*)\)", expression):
        for label in sorted(set(re.findall(r"\w+", listed)) - labels):
            yield f"groups by the label {label}, which no series of it has"


def overlap(a, b):
    return a["x"] < b["x"] + b["w"] and b["x"] < a["x"] + a["w"] and a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"]


def check_dashboard(path, known):
    panels = json.loads(path.read_text(encoding="utf-8"))["panels"]
    for panel in panels:
        for target in panel.get("targets", []):
            for fault in faults_of(target["expr"], known):
                yield f"{path.name}: panel '{panel['title']}' {fault}"
    for a, b in itertools.combinations(panels, 2):
        if a["id"] == b["id"]:
            yield f"{path.name}: panels '{a['title']}' and '{b['title']}' have the same id"
        if overlap(a["gridPos"], b["gridPos"]):
            yield f"{path.name}: panels '{a['title']}' and '{b['title']}' lie on each other"


def check_coverage(root, dashboards):
    shown = set().union(*(named_in(path.read_text(encoding="utf-8")) for path in dashboards))
    for name, _, unit, _ in documented(root):
        if name.startswith("troupe_") and unit != "info" and not shown & {name, name + "_bucket", name + "_sum", name + "_count"}:
            yield f"no panel shows {name}"


def check_rules(folder, known):
    rules, tests = ((folder / name).read_text(encoding="utf-8") for name in ("troupe_rules.yml", "troupe_rules_test.yml"))
    for block in re.split(r"^\s*- (?=alert:|record:|name:)", rules, flags=re.M)[1:]:
        if block.startswith("name:"):
            continue
        title = block.split("\n", 1)[0].strip()
        expression = re.search(r"^\s*expr:(.*?)(?=^\s*(?:for|labels|annotations):|\Z)", block, re.M | re.S)[1]
        for fault in faults_of(expression, known):
            yield f"troupe_rules.yml: {title} {fault}"
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
    dashboards = sorted((root / "deploy/grafana").glob("*.json"))
    for path in dashboards:
        faults += check_dashboard(path, known)
    faults += check_coverage(root, dashboards)
    print("\n".join(faults) or f"dashboards and rules name only what is among {len(known)} series' names")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
