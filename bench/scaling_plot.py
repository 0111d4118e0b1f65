#!/usr/bin/env python3
"""Draws docs/images/scaling.svg from the results of bench/scaling_results.sh on the most GPUs: speed-up over devices beside the ideal, dots
where it was measured, dotted lines where `troupe simulate` says so. Each curve begins with the fewest devices that ran it.

usage: scaling_plot.py [--check] [--results FOLDER] [--svg FILE]      (--check changes nothing and fails when the picture is not up to date)
"""
import argparse
import math
import pathlib
import sys

from scaling_tables import devices, load_scaling, prediction, runs

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLOURS = ("#0969da", "#8250df", "#1a7f37", "#cf222e", "#e16f24", "#57606a")
LEFT, TOP, WIDTH, HEIGHT, GAP = 60, 92, 360, 280, 90
GRID, INK = "#d8dee4", "#24292f"


def batch_time(batch):
    return lambda r: next((d["median_ms"] for d in r["decode"] if d["batch"] == batch), None), lambda s, name: prediction(s, name, "decode_ms", str(batch))


def prompt_time(tokens):
    return (lambda r: next((p["first_token_median_ms"] for p in r["prefill"] if p["prompt_tokens"] == tokens), None),
            lambda s, name: prediction(s, name, "prefill_ms", str(tokens)))


def inverse(x):
    return 1 / x if x else None


def rate_time():
    return (lambda r: r["at_once"] and inverse(r["at_once"]["throughput"]["output_tokens_per_second"]),
            lambda s, name: inverse(prediction(s, name, "at_once", "output_tokens_per_second")))


def curve(steps, size, kind, name, times):
    """(name, measured points, predicted points): devices and speed-up over the fewest of them."""
    found = [(step, r) for step, r in runs(steps, size, kind) if r["parallel"]["pp"] == 1 and not (kind == "latency" and r["parallel"]["dp"] > 1)]
    out = []
    for time_of in (lambda step, r: times[0](r), lambda step, r: times[1](steps, step)):
        points = [(devices(r), t) for step, r in found if (t := time_of(step, r))]
        out.append([(n, points[0][0] * points[0][1] / t) for n, t in points])
    return name, *out


def curves(steps):
    batches = sorted({d["batch"] for size in ("8b", "70b") for _, r in runs(steps, size, "latency") for d in r["decode"]})
    prompts = sorted({p["prompt_tokens"] for size in ("8b", "70b") for _, r in runs(steps, size, "latency") for p in r["prefill"]})
    layers, fleets = [], []
    for size in ("8b", "70b"):
        for batch in dict.fromkeys([*batches[:1], *batches[-1:]]):
            layers.append(curve(steps, size, "latency", f"{size.upper()}, step of {batch}", batch_time(batch)))
        for tokens in prompts[-1:]:
            layers.append(curve(steps, size, "latency", f"{size.upper()}, prompt of {tokens}", prompt_time(tokens)))
        fleets.append(curve(steps, size, "serving", f"{size.upper()}, tokens/s", rate_time()))
    return [("layers shared (tensor parallel)", layers), ("replicas", fleets)]


def text(x, y, anchor, words, size=12, colour=INK):
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='{size}' fill='{colour}'>{words}</text>\n"


def path(points, colour, dash=""):
    line = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f"<path d='{line}' fill='none' stroke='{colour}' stroke-width='2'{dash}/>\n"


def panel(left, title, lines, most):
    steps = max(1, int(math.log2(most)))

    def at(point):
        x, y = (math.log2(max(v, 0.5)) for v in point)
        return left + x / steps * WIDTH, TOP + HEIGHT - min(max(y, -0.5), steps + 0.3) / steps * HEIGHT

    out = text(left, TOP - 68, "start", title, 14)
    for e in range(steps + 1):
        (x, _), (_, y) = at((2**e, 1)), at((1, 2**e))
        out += f"<line x1='{x:.1f}' y1='{TOP}' x2='{x:.1f}' y2='{TOP + HEIGHT}' stroke='{GRID}'/>\n<line x1='{left}' y1='{y:.1f}' x2='{left + WIDTH}' y2='{y:.1f}' stroke='{GRID}'/>\n"
        out += text(x, TOP + HEIGHT + 18, "middle", str(2**e)) + text(left - 8, y + 4, "end", f"{2**e} x")
    out += path([at((1, 1)), at((most, most))], "#9aa1a9", " stroke-dasharray='5 4'")
    for i, (name, measured, predicted) in enumerate(line for line in lines if line[1]):
        colour = COLOURS[i % len(COLOURS)]
        if len(predicted) > 1:
            out += path([at(p) for p in predicted], colour, " stroke-dasharray='1 4' stroke-linecap='round'")
        if len(measured) > 1:
            out += path([at(p) for p in measured], colour)
        out += "".join(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{colour}'/>\n" for x, y in map(at, measured))
        x, y = left + WIDTH / 2 * (i % 2), TOP - 48 + 16 * (i // 2)
        out += f"<circle cx='{x + 4:.1f}' cy='{y - 4:.1f}' r='3.5' fill='{colour}'/>\n" + text(x + 14, y, "start", name, 11)
    return out + text(left + WIDTH / 2, TOP + HEIGHT + 38, "middle", "devices; dashed: ideal, dotted: simulated")


def draw(steps):
    panels = [(title, lines) for title, lines in curves(steps) if any(measured for _, measured, _ in lines)]
    most = max(n for _, lines in panels for _, measured, _ in lines for n, _ in measured)
    width, height = LEFT + len(panels) * (WIDTH + GAP), TOP + HEIGHT + 56
    out = f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}' font-family='Helvetica, Arial, sans-serif'>\n"
    out += "<rect width='100%' height='100%' fill='white'/>\n"
    for i, (title, lines) in enumerate(panels):
        out += panel(LEFT + i * (WIDTH + GAP), title, lines, max(2, most))
    return out + "</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "docs/results")
    parser.add_argument("--svg", type=pathlib.Path, default=ROOT / "docs/images/scaling.svg")
    options = parser.parse_args()
    on_gpus = [(key, steps) for key, steps in load_scaling(options.results).items() if key.isdigit()]
    if not on_gpus:
        print("no results of GPUs, no picture")
        return 1 if options.check and options.svg.exists() else 0
    picture = draw(on_gpus[0][1])
    if options.check:
        return 0 if options.svg.exists() and options.svg.read_text(encoding="utf-8") == picture else 1
    options.svg.write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
