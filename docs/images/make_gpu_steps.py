#!/usr/bin/env python3
"""Draws gpu-steps.svg: the stages of three steps on the streams, one step planned ahead.

usage: make_gpu_steps.py > gpu-steps.svg
"""

LANES = ["scheduler plans", "copy-in stream", "compute stream", "copy-out stream", "deliver thread"]
COLOURS = {1: "#4c78a8", 2: "#f58518", 3: "#54a24b"}
LEFT, TOP, LANE, WIDTH = 150, 44, 44, 880
# step, lane, begin, end, text
BARS = [
    (1, 0, 0, 46, "plan 1"), (1, 1, 50, 84, "up"), (1, 2, 88, 300, "layers, draws of step 1"), (1, 3, 304, 330, "down"), (1, 4, 334, 366, "result 1"),
    (2, 0, 92, 138, "plan 2"), (2, 1, 142, 176, "up"), (2, 2, 304, 516, "layers, draws of step 2"), (2, 3, 520, 546, "down"), (2, 4, 550, 582, "result 2"),
    (3, 0, 372, 418, "plan 3"), (3, 1, 422, 456, "up"), (3, 2, 520, 700, "layers, draws of step 3"),
]


def main():
    height = TOP + LANE * len(LANES) + 30
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">')
    print(f'<rect width="{WIDTH}" height="{height}" fill="white"/>')
    print(f'<text x="{LEFT}" y="24" fill="#333">time, to the right; plan 2 leaves while step 1 runs, its tokens are on the device</text>')
    for i, name in enumerate(LANES):
        y = TOP + i * LANE
        print(f'<text x="{LEFT - 12}" y="{y + 22}" text-anchor="end" fill="#333">{name}</text>')
        print(f'<line x1="{LEFT}" y1="{y + LANE - 6}" x2="{WIDTH - 10}" y2="{y + LANE - 6}" stroke="#ddd"/>')
    for step, lane, begin, end, text in BARS:
        x, y, w = LEFT + begin, TOP + lane * LANE, end - begin
        print(f'<rect x="{x}" y="{y}" width="{w}" height="32" rx="4" fill="{COLOURS[step]}"/>')
        print(f'<text x="{x + w / 2}" y="{y + 21}" text-anchor="middle" fill="white" font-size="11">{text}</text>')
    print("</svg>")


if __name__ == "__main__":
    main()
