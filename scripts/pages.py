#!/usr/bin/env python3
"""Writes what documents draw from elsewhere. With --check: fails if a committed document is out of date, but for docs/models.md.

docs/performance.md      its table of claims, from the runs in docs/bench
docs/models.md           which models fit which Macs; it takes half a minute, so a test compares it
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent / "pages"))

import claims
import parameters
import reference
import room
import troubles

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = {
    "performance.md": claims.page,
    "reference.md": reference.page,
    "troubleshooting.md": troubles.page,
    "api.md": parameters.openai_page,
    "anthropic.md": parameters.anthropic_page,
    "ollama.md": parameters.ollama_page,
}
"""By the name of a page, a function that returns its text; it is given the text that the page has."""
SLOW = {"models.md": room.page}


def main() -> None:
    stale = []
    for name, draw in (PAGES if "--check" in sys.argv else PAGES | SLOW).items():
        path = DOCS / name
        is_there = path.read_text() if path.exists() else ""
        drawn = draw(is_there)
        if drawn != is_there and "--check" not in sys.argv:
            path.write_text(drawn)
        elif drawn != is_there:
            stale.append(name)
    if stale:
        sys.exit(f"Out of date: {', '.join(f'docs/{name}' for name in stale)}. Run scripts/pages.py.")


if __name__ == "__main__":
    main()
