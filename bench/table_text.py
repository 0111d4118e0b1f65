"""What the tables of docs/performance.md are written with."""

NOT_YET = "Not measured yet.\n"


def number(x, pattern="{:.2f}"):
    return "-" if x is None else pattern.format(x)


def times(x):
    return "-" if x is None else f"{x:.3f} x"


def percent(x, digits=1):
    return "-" if x is None else f"{100 * x:.{digits}f}%"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def origin(name, r):
    """Where a table's figures come from."""
    m = r["machine"]
    where = m.get("gpu") or f"{m['cores']} cores of {m['cpu']}"
    if m.get("gpu"):
        where += f", driver {m.get('driver') or '?'}" + (f", CUDA {m['cuda']}" if m.get("cuda") else "")  # a server does not say which
    return f"{where}; {r['date'][:10]}; [`{name}`](results/{name}), made by\n`{r['command']}`\n"


def model(r):
    return r["model"]["name"]
