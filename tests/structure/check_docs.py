#!/usr/bin/env python3
"""Checks that each third party of the build stands in docs/dependencies.md, and each file of docs/ is linked from somewhere.

usage: check_docs.py ROOT
"""
import pathlib
import re
import sys


def main():
    root = pathlib.Path(sys.argv[1])
    faults = []
    table = (root / "docs/dependencies.md").read_text(encoding="utf-8").lower()
    installed = re.findall(r"\b(lib[\w.-]+-dev|[\w-]+-dev|prometheus)\b", (root / "deploy/install.sh").read_text(encoding="utf-8"))
    for package in sorted(set(installed)):
        if package.lower() not in table:
            faults.append(f"docs/dependencies.md: {package} is installed but not argued")
    pages = {p: p.read_text(encoding="utf-8") for p in [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]}
    for page, text in pages.items():
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
            if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists():
                faults.append(f"{page.relative_to(root)}: link to {target}, which does not exist")
    for page in pages:
        if page.parent.name == "docs" and not any(page.name in text for other, text in pages.items() if other != page):
            faults.append(f"docs/{page.name}: no page links to it")
    print("\n".join(faults) or f"{len(pages)} pages and {len(set(installed))} packages agree")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
