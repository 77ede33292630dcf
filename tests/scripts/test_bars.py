"""The bar charts of scripts/bench.py, and those of the documents."""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
ROWS: list[dict[str, Any]] = [
    {"part": "a", "": "one <stream>", "ratio": 0.99, "least": 0.9, "most": 1.05, "target": ">= 0.98", "met": "yes"},
    {"part": "b", "": "16 sessions", "ratio": 1.5, "least": 1.4, "most": 2.0, "target": ">= 1.85", "met": "NO"},
    {"part": "d", "": "a hop", "us": 240},
]


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "scripts" / "bench")
    import bars

    yield bars
    del sys.modules["bars"]


def test_a_chart(bars: Any, tmp_path: Path) -> None:
    file = tmp_path / "ring.svg"
    bars.write_bars(file, "Ring & stock", ROWS, "ratio", ("part", ""))
    chart = ET.fromstring(file.read_text())
    texts = [each.text for each in chart.iter(f"{SVG}text")]
    assert texts == ["Ring & stock: ratio", "a, one <stream>", "0.99", "b, 16 sessions", "1.5"]
    one, other = (each for each in chart.iter(f"{SVG}rect") if each.get("fill") in (bars.MET, bars.UNMET))
    assert float(other.get("width", 0)) / float(one.get("width", 1)) == pytest.approx(1.5 / 0.99, rel=0.01)
    assert (one.get("fill"), other.get("fill")) == (bars.MET, bars.UNMET)
    widest = max(float(line.get("x2", 0)) for line in chart.iter(f"{SVG}line"))
    assert widest <= bars.WIDTH - bars.NUMBER
    assert len(list(chart.iter(f"{SVG}line"))) == 4, "for each bar its spread and its target"


def test_nothing_is_drawn_unless_asked(bars: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bars.write_bars(None, "Ring", ROWS, "ratio", ("part",))
    assert not list(tmp_path.iterdir())


def test_a_chart_without_rows(bars: Any, tmp_path: Path) -> None:
    bars.write_bars(tmp_path / "a.svg", "Ring", [], "ratio", ("part",))
    assert "Ring: ratio" in (tmp_path / "a.svg").read_text()


def test_a_bar_of_parts(bars: Any) -> None:
    rows = [
        {"": "killed", "seconds": 0.5, "detect": 0.1, "load": 0.4},
        {"": "left", "seconds": 2, "detect": 1, "load": 1},
    ]
    chart = ET.fromstring(bars.bars("Pause", rows, "seconds", [""], ["detect", "load"]))
    boxes = [each for each in chart.iter(f"{SVG}rect") if each.get("fill") in bars.PARTS and each.get("width") != "12"]
    widths = [float(each.get("width", 0)) for each in boxes]
    assert widths == pytest.approx([widths[2] / 10, widths[2] * 0.4, widths[2], widths[2]], abs=0.1)
    assert float(boxes[1].get("x", 0)) == pytest.approx(float(boxes[0].get("x", 0)) + widths[0], abs=0.1)
    assert {"detect", "load", "killed", "left"} < {each.text for each in chart.iter(f"{SVG}text")}


def test_the_pictures_show_the_figures_of_the_tables(bars: Any) -> None:
    import pictures

    for name, picture in pictures.pictures().items():
        assert (ROOT / "docs" / name).read_text() == picture, "run scripts/bench/pictures.py"
        assert f"]({name})" in (ROOT / "docs" / "performance.md").read_text()
