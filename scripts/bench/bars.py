"""A bar chart of a command's rows: an SVG of plain text and rectangles."""

import argparse
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from figures import Row

WIDTH, LABEL, NUMBER, BAR, GAP, TOP = 900, 330, 60, 18, 10, 44
MET, UNMET, DARK = "#2f6db3", "#d98a3d", "#222222"
PARTS = ("#2f6db3", "#8a63b8", "#3f9b8f", "#d98a3d", "#c4547d")
STYLE = "@media (prefers-color-scheme: dark) {svg {fill: #e6edf3} line {stroke: #e6edf3} .paper {fill: #0d1117}}"
"""Pages with dark colours have a dark picture, too; the colours of bars are read on both."""


def add_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw the figures as bars into FILE, an SVG")


def write_bars(path: Path | None, title: str, rows: Sequence[Row], value: str, labels: Sequence[str]) -> None:
    """Draw the column `value` of the rows that have it, named by the columns `labels`."""
    if path:
        path.write_text(bars(title, [row for row in rows if row.get(value) is not None], value, labels))
        print(f"Drawn into {path}.")


def bars(title: str, rows: Sequence[Row], value: str, labels: Sequence[str], parts: Sequence[str] = ()) -> str:
    """An SVG with a bar for each row; a thin line from `least` to `most`, and a stroke at the `target`, if it has them.

    A bar that misses its target has another colour. With `parts`, columns whose sum is about `value`, it is made up of
    these. `title` and `value` stand above.
    """
    most = max((number for row in rows for number in _numbers(row, value)), default=0.0) or 1.0
    scale = (WIDTH - LABEL - NUMBER) / most
    top = TOP + (BAR + GAP if parts else 0)
    marks = [f'<text x="8" y="24" font-weight="bold">{escape(f"{title}: {value}")}</text>', *_legend(parts)]
    for index, row in enumerate(rows):
        marks += _bar(row, top + index * (BAR + GAP), scale, value, labels, parts)
    height, drawn = top + len(rows) * (BAR + GAP), "\n".join(marks)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="13" fill="{DARK}"><style>{STYLE}</style>'
        f'<rect class="paper" width="{WIDTH}" height="{height}" fill="white"/>\n{drawn}\n</svg>\n'
    )


def _legend(parts: Sequence[str]) -> list[str]:
    marks = []
    for index, part in enumerate(parts):
        x = LABEL + index * (WIDTH - LABEL) / len(parts)
        marks.append(f'<rect x="{x:g}" y="{TOP}" width="12" height="12" fill="{PARTS[index]}"/>')
        marks.append(f'<text x="{x + 18:g}" y="{TOP + 11}">{escape(part)}</text>')
    return marks


def _bar(row: Row, top: float, scale: float, value: str, labels: Sequence[str], parts: Sequence[str]) -> list[str]:
    name, middle = ", ".join(str(row[label]) for label in labels if row.get(label) not in (None, "")), top + BAR / 2
    colour = UNMET if row.get("met") == "NO" else MET
    number = float(row[value])
    end = LABEL + max(_numbers(row, value)) * scale
    marks = [f'<text x="{LABEL - 8}" y="{middle + 5:g}" text-anchor="end">{escape(name)}</text>']
    x = float(LABEL)
    for length, fill in zip([row[part] for part in parts], PARTS, strict=False) if parts else [(number, colour)]:
        width = float(length) * scale
        marks.append(f'<rect x="{x:.1f}" y="{top:g}" width="{width:.1f}" height="{BAR}" fill="{fill}"/>')
        x += width
    marks.append(f'<text x="{end + 6:.1f}" y="{middle + 5:g}">{number:.4g}</text>')
    if "least" in row and "most" in row:
        least, most = (LABEL + float(row[each]) * scale for each in ("least", "most"))
        marks.append(_line(least, middle, most, middle, 1))
    if target := _target(row):
        at = LABEL + target * scale
        marks.append(_line(at, top - 3, at, top + BAR + 3, 2))
    return marks


def _line(x: float, y: float, to_x: float, to_y: float, width: int) -> str:
    ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
    return f'<line {ends} stroke="{DARK}" stroke-width="{width}"/>'


def _numbers(row: Row, value: str) -> list[float]:
    """All that a row's bar must have room for."""
    return [float(row[value]), float(row.get("most", 0)), _target(row) or 0.0]


def _target(row: Row) -> float | None:
    found = re.search(r"[0-9.]+", str(row.get("target", "")))
    return float(found[0]) if found else None
