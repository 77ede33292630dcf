"""A driver of a ring of one node, whose steps wait for the guesses of an MTP layer or of a draft model: each request gets the events,
bit by bit, that it gets in steps of as many tokens without guesses.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from node.core.errors import PippinError
from node.core.generation import TokenEvent
from node.core.row_family import RowFamily
from node.engine.compute import Compute
from node.engine.draft import DraftModel
from node.engine.faults import Faults
from node.engine.mtp_guesser import MtpGuesser
from node.engine.runner import Runner
from node.ring.driver import Driver
from node.ring.guessing import Guessing, GuessSource
from node.ring.limits import RingLimits
from node.ring.scheduler import Scheduler
from tests.conftest import ROOT
from tests.engine.models import load
from tests.engine.test_ahead_driver import GREEDY, PENALIZED, RING, SEEDED, Served, request

FOUR = RowFamily(((4, 1.0),))
TWO = RowFamily(((2, 1.0),))
ONE_TO_FOUR = RowFamily(((1, 1.0), (2, 1.0), (4, 1.0)))


@pytest.fixture(scope="module", params=[0.0, 0.8, 1.0], ids=lambda share: f"right-{share}")
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model whose MTP layer is right so often."""
    made = tmp_path_factory.mktemp("model")
    command = [sys.executable, str(ROOT / "scripts" / "make_model.py"), "--preset", "tiny", "--out", str(made)]
    subprocess.run([*command, "--mtp", str(request.param)], check=True, capture_output=True)
    return made


@pytest.fixture(autouse=True)
def instant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses take no time, so that it does not depend on the machine whether they pay."""
    monkeypatch.setattr("node.ring.guessing.now", lambda: 0.0)


@asynccontextmanager
async def served(directory: Path, family: RowFamily, guesser: str) -> AsyncIterator[Served]:
    compute = Compute()
    compute.start()
    try:
        stage = await compute.run(load, directory, 0, 4)
        runner = Runner(stage, directory, Faults())
        source: GuessSource | None = None
        if guesser == "MTP layer":
            source = MtpGuesser(await compute.run(load, directory, 4, 5), stage)
        elif guesser:
            source = DraftModel(await compute.run(load, directory, 0, 4), runner.plan.vocabulary)
        limits = RingLimits(context=4096, max_sessions=4, max_queue=100, max_rows=4, chunk=16, weights=1 << 20)
        scheduler = Scheduler(limits, runner.plan, count(1 << 16), 1)
        guessing = Guessing(source, family=lambda _: family)
        driver = Driver(RING, scheduler, compute, runner, None, print, leftover={}, guessing=guessing)
        task = asyncio.create_task(driver.run())
        yield Served(driver)
        task.cancel()
        await asyncio.wait([task])
    finally:
        compute.stop()


REQUESTS = [
    request(12, GREEDY),
    request(30, SEEDED),
    request(9, PENALIZED),
    request(21, GREEDY, 1),
    request(22, SEEDED, 2),
    request(250, GREEDY, 30),
    replace(request(12, GREEDY), resume=(7, 9, 11)),
]


async def one_by_one(directory: Path, family: RowFamily, guesser: str) -> tuple[list[list[TokenEvent]], int, int]:
    """The events, and how many guesses were made and right."""
    async with served(directory, family, guesser) as side:
        events = [await side.answer(each) for each in REQUESTS]
        traffic = side.driver.traffic()
        return events, traffic.guesses, traffic.right_guesses


def without_numbers(events: Sequence[Sequence[TokenEvent]]) -> list[list[int]]:
    return [[event.token for event in answer] for answer in events]


@pytest.mark.parametrize("family", [TWO, FOUR], ids=["two", "four"])
@pytest.mark.parametrize("guesser", ["MTP layer", "draft model"])
async def test_alone_each_event_is_the_same_bit_by_bit(
    directory: Path, family: RowFamily, guesser: str, request: pytest.FixtureRequest
) -> None:
    expected, *_ = await one_by_one(directory, family, "")
    found, made, right = await one_by_one(directory, family, guesser)
    assert found == expected
    if guesser == "draft model":  # the model itself
        assert right > 0.9 * made > 0
    elif "right-0.0" not in request.node.callspec.id:
        assert right > 0.5 * made > 0


async def test_steps_of_one_token_begin_ahead_where_no_guess_pays(directory: Path) -> None:
    """And those of guesses come between them: a session's KV has each token once."""
    expected, *_ = await one_by_one(directory, RowFamily(), "")
    found, made, _ = await one_by_one(directory, ONE_TO_FOUR, "MTP layer")
    assert without_numbers(found) == without_numbers(expected)
    assert made > 0


async def test_side_by_side_each_request_gets_its_own_tokens(directory: Path) -> None:
    """They join, end and hang up while the oldest one's steps wait for guesses."""
    requests = [request(length, SEEDED if length % 2 else GREEDY, 10 + length) for length in range(5, 45, 5)]
    async with served(directory, ONE_TO_FOUR, "") as side:
        expected = [await side.answer(each) for each in requests]
    async with served(directory, ONE_TO_FOUR, "MTP layer") as side:
        turns = [asyncio.Event() for _ in range(len(requests) + 1)]
        turns[0].set()

        async def late(number: int) -> list[TokenEvent]:
            await turns[number].wait()
            return await side.answer(requests[number], 9 if number == 3 else 1000, turns[number + 1])

        found = await asyncio.gather(*map(late, range(len(requests))))
        assert side.driver.traffic().running == 0
    for number, (events, alone) in enumerate(zip(found, expected, strict=True)):
        assert [event.token for event in events] == [event.token for event in alone][: 9 if number == 3 else None]


async def test_a_source_that_fails_goes_and_the_answer_goes_on(directory: Path) -> None:
    (expected, *_), *_ = await one_by_one(directory, FOUR, "")
    async with served(directory, FOUR, "MTP layer") as side:
        source = side.driver._guessing.source
        assert isinstance(source, MtpGuesser)

        def failing(*_: object) -> int:
            raise PippinError("no memory")

        source._guess = failing  # type: ignore[method-assign]
        assert await side.answer(REQUESTS[0]) == expected
        assert side.driver.lacks == "The MTP layer failed: no memory"
