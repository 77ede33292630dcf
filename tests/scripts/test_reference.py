"""The reference is what the programs say of themselves."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_reference_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts" / "pages")
    import reference

    monkeypatch.delitem(sys.modules, "reference")
    assert (ROOT / "docs" / "reference.md").read_text() == reference.page(), "run scripts/pages/reference.py"
