"""After several ends with 70 in a row a node waits before it starts, longer each time."""

import json
from pathlib import Path

import pytest

from node.host import failures
from node.host.failures import WINDOW_S, Failures


def test_the_first_end_costs_no_wait_and_each_further_one_twice_as_much() -> None:
    found, now, pauses = Failures(), 1e9, []
    for _ in range(8):
        found = found.with_end(now)
        pauses.append(found.wait_s(now, 0.0))
        now += found.pause_s + 20
    assert pauses == [0, 30, 60, 120, 240, 480, 600, 600]


def test_a_node_that_ran_for_ten_minutes_begins_anew() -> None:
    twice = Failures().with_end(1e9).with_end(1e9 + WINDOW_S - 1)
    assert twice.in_row == 2
    assert twice.with_end(twice.ended_at + twice.pause_s + WINDOW_S - 1).in_row == 3
    assert twice.with_end(twice.ended_at + twice.pause_s + WINDOW_S).in_row == 1


def test_a_clock_that_was_set_back_does_not_make_it_wait_for_longer() -> None:
    found = Failures(99, 1e9)
    assert found.wait_s(1e9 - 86_400, 0.0) == WINDOW_S
    assert found.wait_s(1e9 + WINDOW_S - 5, 0.0) == 5
    assert found.wait_s(1e9 + 86_400, 0.0) == 0
    assert found.wait_s(1e9 + 20, 1e9 + 10) == 0  # the machine was restarted, as the log says


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"in_row": "x", "ended_at": 1}', '{"in_row": 1e999, "ended_at": 0}']
)
def test_a_damaged_record_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "failures.json").write_text(text)
    assert failures.read(tmp_path) == Failures()
    failures.note_end(tmp_path)
    assert failures.read(tmp_path).in_row == 1


def test_ends_are_recorded(tmp_path: Path) -> None:
    for _ in range(3):
        failures.note_end(tmp_path)
    assert json.loads((tmp_path / "failures.json").read_text())["in_row"] == 3
    failures.note_end(tmp_path / "no such directory")  # said in the log only
