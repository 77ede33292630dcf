"""How a download's bytes and rate are measured."""

from collections.abc import Callable

import pytest

from node.core.rate import WINDOW_S
from node.core.reports import Download
from node.model.meter import Meter

MB = 1 << 20


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def steps(clock: Clock, tell: Callable[[int], None], here: int, seconds: int, rate: int) -> int:
    for _ in range(seconds):
        clock.now += 1
        here += rate
        tell(here)
    return here


def test_the_rate_is_that_of_the_last_seconds(clock: Clock) -> None:
    told: list[Download] = []
    meter = Meter(1000 * MB, 0, told.append, clock)
    assert told == [Download(0, 1000 * MB, 0.0)]
    meter.of_file(0)
    here = steps(clock, meter.of_file, 0, 20, 10 * MB)
    assert told[-1] == Download(200 * MB, 1000 * MB, 10 * MB)
    assert told[-1].left_s == 80
    assert str(told[-1]) == "200.0 of 1000.0 MB, 10.0 MB/s, 80 s left"
    steps(clock, meter.of_file, here, int(WINDOW_S) + 1, 0)
    assert (told[-1].bytes_per_s, told[-1].left_s) == (0.0, None)
    assert str(told[-1]) == "200.0 of 1000.0 MB"


def test_what_an_earlier_try_left_did_not_come_now(clock: Clock) -> None:
    told: list[Download] = []
    meter = Meter(1000 * MB, 300 * MB, told.append, clock)
    meter.of_file(400 * MB)
    steps(clock, meter.of_file, 400 * MB, 5, MB)
    assert told[-1] == Download(705 * MB, 1000 * MB, MB)
    meter.finish_file(405 * MB)
    meter.of_file(0)
    assert told[-1] == Download(705 * MB, 1000 * MB, MB)


def test_a_file_that_is_fetched_anew(clock: Clock) -> None:
    told: list[Download] = []
    meter = Meter(100 * MB, 0, told.append, clock)
    meter.of_file(50 * MB)
    meter.of_file(0)
    steps(clock, meter.of_file, 0, 4, 2 * MB)
    assert told[-1] == Download(8 * MB, 100 * MB, 2 * MB)
