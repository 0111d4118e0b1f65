"""Tables of docs/performance.md from what bench/scaling_results.sh left: docs/results/scaling-N for N GPUs, scaling-cpu for CPU devices."""
import json
import re
import statistics

from table_text import NOT_YET, number, origin, percent, table

MODELS = (("8b", "Llama-3.1-8B shapes"), ("70b", "Llama-3.1-70B shapes"))


def load_scaling(results):
    """{"8": {step: result}}, most GPUs first, and "cpu" at the end."""
    out = {}
    for folder in results.glob("scaling-*"):
        steps = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
        out[folder.name.removeprefix("scaling-")] = {name: r for name, r in steps.items() if "kind" in r}
    order = sorted((key for key in out if key.isdigit()), key=int, reverse=True)
    return {key: out[key] for key in [*order, *sorted(set(out) - set(order))]}


def devices(result):
    parallel = result["parallel"]
    return parallel["tp"] * parallel["pp"] * parallel["dp"]


def layout(result):
    parallel = result["parallel"]
    return " ".join(f"{name.upper()} {parallel[name]}" for name in ("tp", "pp", "dp") if parallel[name] > 1) or "one"


def runs(steps, size, kind):
    """Results of a model's runs, the fewest devices first."""
    found = [(name, r) for name, r in steps.items() if r["kind"] == kind and re.match(rf"{size}-", name)]
    return sorted(found, key=lambda item: (devices(item[1]), item[1]["parallel"]["pp"], item[0]))


def error(predicted, measured):
    return "-" if not predicted or not measured else f"{100 * (predicted / measured - 1):+.0f}%"


def prediction(steps, name, *path):
    found = steps.get("predicted", {}).get("steps", {}).get(name)
    for key in path:
        found = found.get(key) if found else None
    return found


def scaled(rows, time_of):
    """(name, result, figure, speed-up over the first, efficiency) of each run that has the figure; ideal is a speed-up by the number of devices."""
    first = None
    for name, r in rows:
        figure = time_of(r)
        if figure is None:
            continue
        first = first or (devices(r), figure)
        speedup = first[1] / figure
        yield name, r, figure, speedup, speedup * first[0] / devices(r)


def factor(x):
    return f"{x:.2f} x"


def decode_table(steps, size):
    found = runs(steps, size, "latency")
    rows = []
    for batch in sorted({d["batch"] for _, r in found for d in r["decode"]}):
        figures = lambda r, batch=batch: next((d for d in r["decode"] if d["batch"] == batch), None)  # noqa: E731
        for name, r, ms, speedup, efficiency in scaled(found, lambda r: (figures(r) or {}).get("median_ms")):
            d, guess = figures(r), prediction(steps, name, "decode_ms", str(batch))
            rows.append((str(batch), layout(r), f"{ms:.3f}", f"{d['p99_ms']:.3f}", f"{d['tokens_per_second']:.0f}", factor(speedup), percent(efficiency, 0),
                         "-" if d["over_floor"] is None else f"{d['over_floor']:.2f} x", number(guess, "{:.3f}"), error(guess, ms)))
    head = ("batch", "devices", "step, median ms", "p99 ms", "tokens/s", "speed-up", "efficiency", "over the floor of all", "simulated ms", "error")
    return table(head, rows) if rows else ""


def prefill_table(steps, size):
    found = runs(steps, size, "latency")
    rows = []
    for tokens in sorted({p["prompt_tokens"] for _, r in found for p in r["prefill"]}):
        figures = lambda r, tokens=tokens: next((p for p in r["prefill"] if p["prompt_tokens"] == tokens), None)  # noqa: E731
        for name, r, ms, speedup, efficiency in scaled(found, lambda r: (figures(r) or {}).get("first_token_median_ms")):
            p, guess = figures(r), prediction(steps, name, "prefill_ms", str(tokens))
            rows.append((str(tokens), layout(r), f"{ms:.2f}", f"{p['tokens_per_second']:.0f}", factor(speedup), percent(efficiency, 0), percent(p["matmul_share"]),
                         number(guess), error(guess, ms)))
    head = ("prompt", "devices", "first token, median ms", "tokens/s", "speed-up", "efficiency", "of all peaks", "simulated ms", "error")
    return table(head, rows) if rows else ""


def shares(mine, others):
    """Seconds of compute, waiting and moving, means over ranks. A GPU counts all time in collectives as moving: what its ranks spend there beyond
    the one that spends least is waiting."""
    ranks = [mine, *others]
    wait = sum(r["collective_wait_ms"] for r in ranks) / len(ranks)
    move = sum(r["collective_move_ms"] for r in ranks) / len(ranks)
    if wait == 0 and others:
        least = min(r["collective_move_ms"] for r in ranks)
        wait, move = move - least, least
    # On CPUs draws travel before and after what counts as computing, so on busy cores calls can take longer than that.
    return max(0.0, mine["compute_ms"] - wait - move), wait, move


def split_table(steps, size):
    rows = []
    for name, r in runs(steps, f"(split-)?{size}", "latency"):
        if devices(r) == 1 or (r["device"] == "cuda" and not name.startswith("split-")):
            continue
        for kind, label in (("decode", "batch"), ("prefill", "prompt_tokens")):
            for i, figures in enumerate(r[kind]):
                if "split" not in figures:
                    continue
                parts = shares(figures["split"], [o[kind][i] for o in r.get("other_ranks", [])])
                whole = sum(parts)
                what = f"decode, batch {figures[label]}" if kind == "decode" else f"prompt of {figures[label]}"
                rows.append((what, layout(r), f"{whole:.3f}", *(f"{part:.3f} ({percent(part / whole, 0)})" for part in parts)))
    head = ("step", "devices", "ms", "computing", "waiting for peers", "moving")
    return table(head, rows) if rows else ""


def sums_table(steps):
    r = steps.get("ceilings", {})
    if not r.get("all_reduce"):
        return ""
    rows = []
    for point in r["all_reduce"]["sizes"]:
        nccl, own, nccl_norm, own_norm = (point.get(f"{way}_seconds") for way in ("nccl", "own", "nccl_and_norm", "own_and_norm"))
        rows.append((f"{point['bytes'] / 1024:.0f} KiB", *(number(x and x * 1e6) for x in (nccl, own, nccl_norm, own_norm)),
                     f"{own_norm / nccl_norm:.2f} x" if own_norm and nccl_norm else "-", f"{point['bytes'] / min(nccl, own or nccl) * 1e-9:.1f}"))
    return table(("sum of", "NCCL, us", "fused, us", "NCCL, then a norm", "fused with the norm", "over NCCL's", "GB/s of the quicker"), rows)


def replicas_table(steps, size):
    rows = []
    for name, r, per_request, speedup, efficiency in scaled(
            runs(steps, size, "serving"), lambda r: r["at_once"] and 1 / r["at_once"]["throughput"]["output_tokens_per_second"]):
        guess = prediction(steps, name, "at_once", "output_tokens_per_second")
        arriving, good = r["arriving"], prediction(steps, name, "arriving", "goodput_requests_per_second")
        ttft, itl = (arriving["latency_ms"][key] for key in ("ttft", "itl"))
        goodput = arriving["goodput"]["requests_per_second"]
        rows.append((layout(r), f"{1 / per_request:.0f}", factor(speedup), percent(efficiency, 0), number(guess, "{:.0f}"), error(guess, 1 / per_request),
                     f"{arriving['throughput']['requests_per_second']:.1f}", f"{goodput:.1f}", f"{ttft['median']:.0f} / {ttft['p99']:.0f}",
                     f"{itl['median']:.1f} / {itl['p99']:.1f}", number(good, "{:.1f}"), error(good, goodput)))
    head = ("devices", "all at once: tokens/s", "speed-up", "efficiency", "simulated", "error", "arriving: requests/s", "good ones/s", "TTFT ms, p50 / p99",
            "ITL ms, p50 / p99", "simulated good ones/s", "error")
    return table(head, rows) if rows else ""


def kills_table(steps):
    rows = []
    for name, r in steps.items():
        if r["kind"] == "kills":
            noticed = [s for s in r["noticed_seconds"] if s is not None]
            rows.append((name.removeprefix("kill-"), str(len(r["seconds"])), number(statistics.median(noticed) if noticed else None, "{:.3f}"),
                         number(r["median_seconds"]), number(r["longest_seconds"]), str(r["requests_lost"])))
    return table(("run", "kills", "noticed after: median s", "next token after: median s", "longest s", "requests lost"), rows) if rows else ""


def tokens_table(steps):
    r = steps.get("tokens")
    if not r:
        return ""
    rows = []
    for line in r["layouts"]:
        ran = not line.get("not_run")
        rows.append((f"TP {line['tp']} PP {line['pp']}", f"{line['texts_equal']} of {line['texts']}" if ran else f"not run: {line['not_run']}",
                     percent(line["characters_equal"] / line["characters"], 0) if ran else "-"))
    return table(("devices", "greedy texts as on one device", "of the text, up to where it parts"), rows)


def sections(steps, speeds=True):
    """Headings and tables of one folder. CPU devices that share a few cores have no speeds worth a table, and all one tiny model."""
    for size, title in MODELS if speeds else MODELS[:1]:
        title = title if speeds else "The tiny model"
        if speeds:
            yield f"{title}: decode steps", decode_table(steps, size)
            yield f"{title}: prompts", prefill_table(steps, size)
            yield f"{title}: replicas under load", replicas_table(steps, size)
        yield f"{title}: where a step's time goes", split_table(steps, size)
    yield "Sums over all GPUs, in a graph", sums_table(steps)
    yield "A worker killed under load", kills_table(steps)
    yield "The same tokens", tokens_table(steps)


def of_folder(key, steps):
    parts = [f"**{title}**\n\n{text}" for title, text in sections(steps, key != "cpu") if text]
    commands = "".join(f"- `{name}.json`: `{r['command']}`\n" for name, r in steps.items() if r["kind"] != "predicted")
    some = next(iter(steps.values()))
    command = "TINY=1 DEVICE=cpu scaling_results.sh TROUPE FOLDER --gpus 4" if key == "cpu" else f"scaling_results.sh TROUPE FOLDER --gpus {key}"
    head = origin(f"scaling-{key}/", {**some, "command": command})
    return head + "\n" + "\n".join(parts) + f"\n<details><summary>the command of each figure</summary>\n\n{commands}\n</details>\n"


def on_gpus(scaling):
    found = [(key, steps) for key, steps in scaling.items() if key.isdigit() and steps]
    return "\n".join(f"### Of {key} GPUs\n\n{of_folder(key, steps)}" for key, steps in found) or NOT_YET


def on_cpus(scaling):
    return of_folder("cpu", scaling["cpu"]) if scaling.get("cpu") else NOT_YET


SCALING_TABLES = {"scaling": on_gpus, "scaling-cpu": on_cpus}
