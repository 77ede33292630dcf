"""Delays that make periodic tasks due together."""

import pytest

from node.core import clock
from node.core.clock import in_step, in_step_before


@pytest.mark.parametrize(
    ("adjust", "shortest_s", "least", "most"),
    [(in_step, 0.3, -0.0501, 0.2501), (in_step_before, 0.251, -0.2501, 0.0501)],
)
@pytest.mark.parametrize("present", [0.0, 0.01, 0.2, 0.249, 100.13])
def test_delays_end_at_moments_that_they_share(monkeypatch, adjust, shortest_s, least, most, present):
    monkeypatch.setattr(clock, "now", lambda: present)
    for delay_s in (shortest_s, 0.3, 0.4, 0.6, 1.0, 7.3):
        adjusted = adjust(delay_s)
        ended = (present + adjusted) / clock.GRID_S
        assert ended == pytest.approx(round(ended))
        assert least <= adjusted - delay_s <= most


def test_what_must_not_be_late_and_is_due_soon_is_due(monkeypatch):
    monkeypatch.setattr(clock, "now", lambda: 10.1)
    assert (in_step_before(0.2), in_step_before(-1.0)) == (0.0, 0.0)


def test_what_begins_just_after_such_a_moment_keeps_its_pace(monkeypatch):
    monkeypatch.setattr(clock, "now", lambda: 9.002)
    assert in_step(0.6) == pytest.approx(0.598)


def test_short_delays_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(clock, "now", lambda: 10.1)
    assert (in_step(0.0), in_step(0.1)) == (0.0, 0.1)
