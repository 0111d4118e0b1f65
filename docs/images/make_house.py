#!/usr/bin/env python3
"""Draws docs/images/house.svg: the actors, the folders they live in, and the numbered life of a request.

usage: make_house.py > house.svg
"""

BOX = '<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="10" fill="{fill}" stroke="{stroke}" stroke-width="1.6"/>'


def box(x, y, w, h, title, lines, fill="#ffffff", stroke="#3b4a63"):
    out = [BOX.format(x=x, y=y, w=w, h=h, fill=fill, stroke=stroke)]
    out.append(f'<text x="{x + w / 2}" y="{y + 24}" class="title">{title}</text>')
    for i, line in enumerate(lines):
        out.append(f'<text x="{x + w / 2}" y="{y + 44 + 17 * i}" class="small">{line}</text>')
    return "\n".join(out)


def arrow(x1, y1, x2, y2, number="", label="", dx=0, dy=0):
    out = [f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="arrow" marker-end="url(#head)"/>']
    mx, my = (x1 + x2) / 2 + dx, (y1 + y2) / 2 + dy
    if number:
        out.append(f'<circle cx="{mx}" cy="{my}" r="11" class="badge"/><text x="{mx}" y="{my + 4.5}" class="number">{number}</text>')
    if label:
        out.append(f'<text x="{mx}" y="{my - 17}" class="small">{label}</text>')
    return "\n".join(out)


def room(x, y, w, h, name):
    return (
        f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="16" class="room"/>'
        f'<text x="{x + 16}" y="{y + 24}" class="room-name">{name}</text>'
    )


def main():
    print(
        """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1160 560" font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif" role="img"
 aria-label="The actors of Troupe and the life of a request">
<style>
.title{font-size:15px;font-weight:600;text-anchor:middle;fill:#1c2738}.small{font-size:12px;text-anchor:middle;fill:#4a5a73}
.room{fill:#f4f7fb;stroke:#c7d2e2;stroke-dasharray:5 4}.room-name{font-size:13px;fill:#6b7c96;font-style:italic}
.arrow{stroke:#3b4a63;stroke-width:1.8}.badge{fill:#d9480f}.number{font-size:12px;font-weight:700;fill:#fff;text-anchor:middle}
</style>
<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
<path d="M0 0L10 5L0 10z" fill="#3b4a63"/></marker></defs>
<rect width="1160" height="560" fill="#ffffff"/>"""
    )
    print(room(150, 16, 196, 528, "transport/http"))
    print(room(362, 16, 528, 528, "actors (CAF)"))
    print(room(906, 16, 240, 528, "device, in-process or isolated"))
    print(box(16, 222, 104, 90, "client", ["OpenAI API", "SSE stream"]))
    print(box(168, 60, 160, 108, "session", ["limits, auth, drain", "openai_request:", "JSON to request"]))
    print(box(168, 380, 160, 108, "SSE writer", ["openai_response,", "bounded buffer,", "slow readers dropped"]))
    print(box(380, 60, 150, 108, "gateway", ["ids, sinks, usage,", "bounds", "one end per request"], "#fff4e6", "#d9480f"))
    print(box(560, 60, 150, 108, "tokenizer pool", ["chat template,", "text to tokens"], "#fff4e6", "#d9480f"))
    print(box(560, 222, 150, 108, "scheduler", ["schedule() / apply(),", "paged KV blocks,", "one step ahead"], "#fff4e6", "#d9480f"))
    print(box(380, 380, 330, 108, "detokenizer", ["whole characters only, stop strings held back,", "each piece of text once"], "#fff4e6", "#d9480f"))
    print(box(740, 380, 132, 108, "supervisor", ["restarts devices,", "escalates"], "#fff4e6", "#d9480f"))
    print(box(924, 222, 204, 108, "device actor", ["step_plan in,", "step_result out"], "#fff4e6", "#d9480f"))
    print(box(924, 60, 204, 108, "step executor", ["slots, KV bytes, layers,", "ops, sampler"], "#e7f5ff", "#1971c2"))
    print(arrow(68, 222, 166, 120, "1"))
    print(arrow(330, 114, 378, 114, "2", dy=0))
    print(arrow(532, 114, 558, 114, "3"))
    print(arrow(635, 170, 635, 220, "4"))
    print(arrow(712, 262, 922, 262, "5", "step_plan n + 1"))
    print(arrow(1026, 222, 1026, 170))
    print(arrow(922, 298, 712, 298, "6", "", dy=0))
    print('<text x="817" y="326" class="small">step_result n</text>')
    print(arrow(635, 332, 635, 378, "7"))
    print(arrow(378, 434, 330, 434, "8"))
    print(arrow(166, 434, 68, 314, "9"))
    print(f'<line x1="806" y1="380" x2="1000" y2="332" class="arrow" stroke-dasharray="4 4" marker-end="url(#head)"/>')
    print('<text x="940" y="380" class="small">monitors, restarts</text>')
    print("</svg>")


if __name__ == "__main__":
    main()
