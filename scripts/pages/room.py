"""The table of models and Macs in docs/models.md, of what `cluster models --fits` shows."""

from collections.abc import Mapping
from typing import Any

from node.cli.models import fit, macs
from node.cluster.fits import USUAL, rows
from node.core.units import format_bytes

BEGIN, END = "<!-- fits: drawn by scripts/pages.py -->\n", "<!-- end of fits -->"


def page(text: str) -> str:
    """Return the page with its table drawn anew; models that are alike share a line. Takes half a minute."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit("docs/models.md has no place for what fits.")
    names: dict[tuple[str, ...], list[str]] = {}
    for row in rows():
        names.setdefault(_cells(row), []).append(row["short_names"][0])
    head = ["model", "weights", *map(macs, USUAL)]
    lines = [head, ["---"] * len(head), *([", ".join(alike), *cells] for cells, alike in names.items())]
    return "".join([before, begin, "\n", *(f"| {' | '.join(line)} |\n" for line in lines), "\n", end, after])


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (format_bytes(row["bytes"]), *map(fit, row["fits"]))
