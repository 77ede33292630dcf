"""How a download's bytes and rate are measured."""

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


def steps(clock: Clock, meter: Meter, here: int, seconds: int, rate: int) -> int:
    for _ in range(seconds):
        clock.now += 1
        here += rate
        meter.count(here)
        meter.download()
    return here


def begun(clock: Clock, done: int, total: int) -> Meter:
    meter = Meter(clock)
    meter.begin(done, total)
    assert meter.download() == Download(done, total, 0.0)
    return meter


def test_the_rate_is_that_of_the_last_seconds(clock: Clock) -> None:
    meter = begun(clock, 0, 1000 * MB)
    meter.count(0)
    here = steps(clock, meter, 0, 20, 10 * MB)
    told = meter.download()
    assert told == Download(200 * MB, 1000 * MB, 10 * MB)
    assert told.left_s == 80
    assert str(told) == "200.0 of 1000.0 MB, 10.0 MB/s, 80 s left"
    steps(clock, meter, here, int(WINDOW_S) + 1, 0)
    told = meter.download()
    assert (told.bytes_per_s, told.left_s) == (0.0, None)
    assert str(told) == "200.0 of 1000.0 MB"


def test_what_an_earlier_try_left_did_not_come_now(clock: Clock) -> None:
    meter = begun(clock, 300 * MB, 1000 * MB)
    meter.count(400 * MB)
    steps(clock, meter, 400 * MB, 5, MB)
    assert meter.download() == Download(705 * MB, 1000 * MB, MB)
    meter.begin(705 * MB, 1000 * MB)
    meter.count(0)
    assert meter.download() == Download(705 * MB, 1000 * MB, MB), "the rate goes on with the next file"


def test_a_file_that_is_fetched_anew(clock: Clock) -> None:
    meter = begun(clock, 0, 100 * MB)
    meter.count(50 * MB)
    meter.count(0)
    steps(clock, meter, 0, 4, 2 * MB)
    assert meter.download() == Download(8 * MB, 100 * MB, 2 * MB)
