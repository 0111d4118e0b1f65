"""Where the time of a restart went, read out of a server's log: what its new ranks had reached, and when.

A rank's line says `started: process 0.012 s, weights 0.120 s, .., ready 0.431 s`: seconds after its process began, and its end is when the line
was written. What a group has reached counts from its last rank.
"""
import datetime
import re
import statistics

LINE = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) \S+ (.*)$", re.MULTILINE)
STARTED = re.compile(r"^(.*)started: (.*)$")
STAGE = re.compile(r"([^,]+?) (\d+\.\d+) s(?:, |$)")


def timed_lines(log):
    """(seconds since the epoch, text) of each line that has a time."""
    return [(datetime.datetime.strptime(when, "%Y-%m-%d %H:%M:%S.%f").timestamp(), text) for when, text in LINE.findall(log)]


def first(lines, since, words):
    """The place of the first line from there on that has these words; none: past the end."""
    return next((i for i in range(since, len(lines)) if words in lines[i][1]), len(lines))


def stages_after(log, struck):
    """{what: seconds after `struck` (since the epoch)} of the loss that was noticed after it, up to "up"; what the log does not say is not there."""
    lines = timed_lines(log)
    lost = first(lines, next((i for i, (when, _) in enumerate(lines) if when >= struck - 0.002), len(lines)), "device lost")
    up = first(lines, lost, "up again")
    if up == len(lines):
        return {"noticed": lines[lost][0] - struck} if lost < len(lines) else {}
    ranks = {}  # by name: of the last start
    for when, text in lines[lost:up]:
        if found := STARTED.match(text):
            ranks[found[1]] = when, [(what, float(seconds)) for what, seconds in STAGE.findall(found[2])]
    noticed = lines[lost][0] - struck
    stages = {"noticed": noticed}
    for when, reached in ranks.values():
        begun = when - reached[-1][1] - struck
        for what, seconds in [("started", 0.0), *reached]:  # nothing comes before the notice, but a process knows its beginning to 0.01 s only
            stages[what] = max(stages.get(what, noticed), begun + seconds)
    stages["up"] = lines[up][0] - struck
    return stages


def stage_table(kills):
    """Lines of text: what, when in each of the kills, the median, and how long after the one before."""
    names = dict.fromkeys(what for stages in kills for what in stages)  # which settles ties
    medians = {what: statistics.median(stages[what] for stages in kills if what in stages) for what in names}
    head = ["s after the kill", *(f"kill {i + 1}" for i in range(len(kills))), "median", "after the one before"]
    rows, before = [head], 0.0
    for what in sorted(names, key=medians.get):
        rows.append([what, *(f"{k[what]:.3f}" if what in k else "-" for k in kills), f"{medians[what]:.3f}", f"{medians[what] - before:.3f}"])
        before = medians[what]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return ["  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]) for row in rows]
