"""Figures of a run: percentiles, tables for people, and the machine and the versions that they were measured with."""

import importlib.metadata
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]
"""One line of a table: the same keys in each row; values are str, int, float or None."""


def numbers(text: str) -> list[int]:
    """Read the value of an option like `--streams 64,256`; empty: none."""
    return [int(part) for part in text.split(",") if part]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed; NaN without values."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


def at_least(value: float, target: float | None) -> Row:
    return {"target": f">= {target:g}", "met": _yes(value >= target)} if target else {"target": "", "met": ""}


def at_most(value: float, target: float) -> Row:
    return {"target": f"<= {target:g}", "met": _yes(value <= target)}


def _yes(met: bool) -> str:
    return "yes" if met else "NO"


def table(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([_text(row.get(name)) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width) for index, (cell, width) in _cells(line, widths)
        )
        for line in lines
    ]
    return "\n".join([text[0], "-" * len(text[0]), *text[1:]])


def _cells(line: list[str], widths: list[int]) -> list[tuple[int, tuple[str, int]]]:
    return list(enumerate(zip(line, widths, strict=True)))


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def machine() -> Row:
    """Return what computes. A `load` above 0.5 before a run means that the machine was busy."""
    return {
        "device": mx.device_info()["device_name"],
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 2),
    }


def versions() -> Row:
    packages = ("mlx", "mlx-lm", "grpcio", "aiohttp")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in packages}}


def commit() -> str:
    """Return the commit that is measured, with `-dirty` if the product differs from it."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    differs = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "node", "api"], check=False)
    return head.stdout.strip() + ("-dirty" if differs.returncode else "")


def report(title: str, rows: Sequence[Row], notes: Sequence[str] = ()) -> None:
    print(f"\n{title}\n\n{table(rows)}")
    for note in notes:
        print(f"  {note}")
    print(flush=True)
