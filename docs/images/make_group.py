#!/usr/bin/env python3
"""Draws docs/images/group.svg: the states in a device group's life, and what leads from one to the next.

usage: make_group.py > group.svg
"""
from make_house import arrow, box

ACCENT = ("#fff4e6", "#d9480f")


def bend(points, label, x, y, anchor="middle"):
    path = "M" + " L".join(f"{px} {py}" for px, py in points)
    text = "".join(f'<text x="{x}" y="{y + 16 * i}" class="small" style="text-anchor:{anchor}">{line}</text>' for i, line in enumerate(label))
    return f'<path d="{path}" fill="none" class="arrow" marker-end="url(#head)"/>{text}'


def main():
    print(
        """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 430" font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif" role="img"
 aria-label="The states in the life of a device group">
<style>
.title{font-size:15px;font-weight:600;text-anchor:middle;fill:#1c2738}.small{font-size:12px;text-anchor:middle;fill:#4a5a73}
.arrow{stroke:#3b4a63;stroke-width:1.8}.badge{fill:#d9480f}.number{font-size:12px;font-weight:700;fill:#fff;text-anchor:middle}
</style>
<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
<path d="M0 0L10 5L0 10z" fill="#3b4a63"/></marker></defs>
<rect width="1000" height="430" fill="#ffffff"/>"""
    )
    print(box(40, 60, 210, 92, "starting", ["all ranks at once;", "rank 0 publishes where to meet"], *ACCENT))
    print(box(420, 60, 170, 92, "up", ["plans to every rank,", "outputs from the leader"], "#ebfbee", "#2b8a3e"))
    print(box(770, 60, 190, 92, "doubtful", ["nothing is planned;", "whose fault is it?"], *ACCENT))
    print(box(420, 270, 170, 92, "retiring", ["every rank is told to go;", "requests wait, epoch + 1"], *ACCENT))
    print(box(770, 290, 190, 92, "given up", ["requests go to other replicas,", "or the server exits with 1"], "#fff5f5", "#c92a2a"))
    print(arrow(250, 106, 416, 106))
    print('<text x="333" y="80" class="small">all ranks ready,</text><text x="333" y="96" class="small">limits agreed</text>')
    print(arrow(590, 106, 766, 106))
    print('<text x="678" y="80" class="small">a rank hung up, or another</text><text x="678" y="96" class="small">rank waited for it in vain</text>')
    print(arrow(505, 152, 505, 266))
    print('<text x="512" y="196" class="small" style="text-anchor:start">a step failed, a rank exited,</text>')
    print('<text x="512" y="212" class="small" style="text-anchor:start">no answer in time</text>')
    print(bend([(840, 152), (840, 246), (560, 246), (560, 266)], ["an exit tells, or a rank", "reports its own fault,", "or 250 ms are over"], 848, 184, "start"))
    print(bend([(420, 316), (215, 316), (215, 156)], ["all ranks ended, or 2 s are over;", "restarts within their limit"], 317, 338))
    print(arrow(590, 326, 766, 326))
    print('<text x="678" y="346" class="small">too many restarts</text>')
    print(bend([(70, 152), (70, 200), (20, 200), (20, 106), (36, 106)], ["start failed: again after", "0.1 s, doubling to 5 s"], 30, 222, "start"))
    print("</svg>")


if __name__ == "__main__":
    main()
