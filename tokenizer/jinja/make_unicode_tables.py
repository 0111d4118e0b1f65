#!/usr/bin/env python3
"""Writes unicode_tables.cpp: the character properties that Python's str methods use, from Python's own Unicode data.

usage: python3 make_unicode_tables.py > unicode_tables.cpp
"""
import sys
import unicodedata

ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(predicate):
    out = []
    for c in range(0x110000):
        if predicate(chr(c)):
            if out and out[-1][1] == c - 1:
                out[-1][1] = c
            else:
                out.append([c, c])
    return out


def case_runs(mapped):
    """(first, last, step, delta) over characters whose mapping is one other character."""
    runs = []
    for c in ALL:
        to = mapped(chr(c))
        if len(to) != 1 or to == chr(c):
            continue
        delta = ord(to) - c
        if runs:
            first, last, step, d = runs[-1]
            gap = c - last
            if d == delta and gap in (1, 2) and step in (0, gap):
                runs[-1] = (first, c, gap, d)
                continue
        runs.append((c, c, 0, delta))
    return [(a, b, s or 1, d) for a, b, s, d in runs]


def expansions(mapped):
    return [(c, [ord(x) for x in mapped(chr(c))]) for c in ALL if len(mapped(chr(c))) > 1]


def pack(name, type_name, rows):
    lines, line = [], " "
    for row in rows:
        if len(line) + len(row) + 2 > 138:
            lines.append(line)
            line = " "
        line += " " + row + ","
    lines.append(line)
    print(f"const {type_name} {name}_data[] = {{")
    print("\n".join(lines))
    print("};")
    print(f"const std::span<const {type_name}> {name}{{{name}_data}};\n")


def main():
    print("// Written by make_unicode_tables.py; do not edit.")
    print(f"// Unicode {unicodedata.unidata_version}, as Python {sys.version_info[0]}.{sys.version_info[1]} has it.")
    print('#include "tokenizer/jinja/unicode_tables.hpp"\n')
    print("// clang-format off\nnamespace troupe::jinja::unicode {\n")
    for name, predicate in [("unprintable", lambda c: not c.isprintable()), ("alphabetic", str.isalpha), ("decimals", str.isdecimal),
                            ("digits", str.isdigit), ("numerics", str.isnumeric)]:
        pack(name, "range", [f"{{{a:#x}, {b:#x}}}" for a, b in ranges(predicate)])
    for name, mapped in [("to_upper", str.upper), ("to_lower", str.lower), ("to_title", str.title)]:
        pack(name, "case_run", [f"{{{a:#x}, {b:#x}, {s}, {d}}}" for a, b, s, d in case_runs(mapped)])
        pack(name + "_long", "expansion", ["{%#x, {%s}}" % (c, ", ".join(f"{x:#x}" for x in to)) for c, to in expansions(mapped)])
    print("} // namespace troupe::jinja::unicode")


main()
