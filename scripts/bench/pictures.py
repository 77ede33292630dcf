"""Draws the pictures of docs/performance.md from the tables there. Run it when one of these tables has changed."""

import re
from collections.abc import Iterator
from pathlib import Path

import bars
from figures import Row

DOCS = Path(__file__).parents[2] / "docs"
PHASES = ("detect", "elect", "plan", "load", "replay")


def table(page: str, first: str) -> Iterator[dict[str, str]]:
    """Cells by the names of their columns, of the first table whose first column is called `first`."""
    lines = page[page.index(f"\n| {first} |") + 1 :].splitlines()
    columns, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] in ("|", ""))
    for row in rows:
        if not row:
            return
        yield dict(zip(columns, row, strict=True))


def numbers(cell: str) -> list[float]:
    return [float(number) for number in re.findall(r"[0-9.]*[0-9]", cell)]


def ratio(row: dict[str, str], column: str, label: str) -> Row:
    """A ratio to stock mlx-lm, with its spread and its target as far as the table has them."""
    drawn: Row = {"": label, "ratio": numbers(row[column])[0], "met": "NO" if row["target"].endswith("no") else "yes"}
    if target := numbers(row["target"]):
        drawn["target"] = target[0]
    if spread := numbers(row.get("spread", "")):
        drawn["least"], drawn["most"] = spread
    return drawn


def pause(row: dict[str, str]) -> Row:
    """The medians of a pause and of its phases, and its longest."""
    total, most = numbers(row["total"])
    phases = {phase: (numbers(row[phase]) or [0.0])[0] for phase in PHASES}
    return {"": row["lost"], "seconds": total, "least": total, "most": most, **phases}


def pictures() -> dict[str, str]:
    """Each SVG, by the name of its file."""
    page = (DOCS / "performance.md").read_text()
    guesses = [ratio(row, "ring of 2", row["e: prediction"]) for row in table(page, "e: prediction")]
    cases = [(row, row["25m, the wheel's BLAS"]) for row in table(page, "25m, the wheel's BLAS")]
    sessions = [ratio(row, "ratio", name.removeprefix("b: ")) for row, name in cases if name.startswith("b: ")]
    pauses = [pause(row) for row in table(page, "lost")]
    return {
        "guesses.svg": bars.bars(
            "One stream of two nodes against stock mlx-lm, by the prediction", guesses, "ratio", [""]
        ),
        "sessions.svg": bars.bars("Many sessions against stock mlx-lm on one core", sessions, "ratio", [""]),
        "pauses.svg": bars.bars("Pause of a stream, p50 and longest", pauses, "seconds", [""], PHASES),
    }


if __name__ == "__main__":
    for name, picture in pictures().items():
        (DOCS / name).write_text(picture)
