"""Clients take turns at what only a few may use at once; who has used the least time is next."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.core.errors import Overloaded
from node.core.fair_turns import FairTurns


class Work:
    """Turns of clients. Each begins in order, is noted as it begins, and lasts until it is ended."""

    def __init__(self, at_once: int, most_waiting: int = 100) -> None:
        self.turns = FairTurns("the work", at_once, most_waiting)
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, *names: str) -> None:
        """`names`: of turns; each begins with its client's letter."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._run(name))
            await asyncio.sleep(0)

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await self._tasks[name]
        await asyncio.sleep(0)

    async def hang_up(self, *names: str) -> None:
        for name in names:
            self._tasks[name].cancel()
        await asyncio.wait([self._tasks[name] for name in names])

    async def _run(self, name: str) -> None:
        async with self.turns.turn(name[0]):
            self.begun.append(name)
            await self._ends[name].wait()


async def test_a_client_that_comes_late_is_next() -> None:
    work = Work(1)
    await work.ask(*(f"a{number}" for number in range(50)), "b1")
    await work.end("a0")
    assert work.begun == ["a0", "b1"]
    await work.end("b1")
    await work.end(*(f"a{number}" for number in range(1, 50)))
    assert work.begun[2:] == [f"a{number}" for number in range(1, 50)]


async def test_one_client_has_all_turns_only_while_nobody_else_waits() -> None:
    work = Work(2)
    await work.ask("a1", "a2", "a3", "a4")
    assert work.begun == ["a1", "a2"]
    assert not work.turns.is_wanted("a")
    await work.ask("b1", "b2", "c1")
    assert work.turns.is_wanted("a")
    await work.end("a1")
    assert work.begun[2:] == ["b1"]
    assert work.turns.is_wanted("a")
    await work.end("a2")
    assert work.begun[3:] == ["c1"], "b has a turn"
    assert [work.turns.is_wanted(client) for client in "abc"] == [False, True, True], "by a"
    await work.hang_up("b1", "b2", "c1")
    assert work.begun[4:] == ["a3", "a4"]
    await work.end("a3", "a4")


async def test_who_uses_little_time_is_before_who_uses_much(monkeypatch: pytest.MonkeyPatch) -> None:
    work, time = Work(1), 0.0
    monkeypatch.setattr("node.core.fair_turns.now", lambda: time)
    await work.ask("a1", "a2", "b1", "b2", "b3")
    for name, seconds in (("a1", 1.0), ("b1", 0.3), ("b2", 0.3), ("b3", 0.3)):
        time += seconds
        await work.end(name)
    assert work.begun == ["a1", "b1", "b2", "b3", "a2"]
    await work.end("a2")


async def test_what_a_gone_client_waits_for_is_dropped_and_frees_its_place() -> None:
    work = Work(1, most_waiting=2)
    await work.ask("a1", "a2", "a3", "b1")
    async with asyncio.timeout(10):
        with pytest.raises(Overloaded, match=r"2 of your requests already wait for the work") as refused:
            async with work.turns.turn("a"):
                pass
    assert refused.value.retry_after
    await work.ask("b2")
    await work.hang_up("a2", "b1")
    await work.ask("a4")
    await work.end("a1")
    assert work.begun == ["a1", "b2"]
    await work.end("b2", "a3", "a4")
    assert work.begun == ["a1", "b2", "a3", "a4"]


async def test_who_hangs_up_in_the_very_moment_in_which_its_turn_begins_holds_none() -> None:
    turns = FairTurns("the work", 1, 10)

    @asynccontextmanager
    async def held():
        async with turns.turn("a"):
            yield

    async def wait() -> None:
        async with turns.turn("b"):
            await asyncio.sleep(3600)

    for moment in ("before", "after"):
        async with held():
            waiting = [asyncio.create_task(wait()) for _ in range(2)]
            await asyncio.sleep(0)
            if moment == "before":
                waiting[0].cancel()
        if moment == "after":
            waiting[0].cancel()
        await asyncio.wait([waiting[0]])
        waiting[1].cancel()
        await asyncio.wait(waiting)
    async with asyncio.timeout(10), turns.turn("c"):
        assert turns._running == Counter("c")
        assert not len(turns._queue)


@given(st.integers(1, 3), st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["ask", "end", "hang up"]))))
def test_every_history_uses_all_turns_and_gives_no_client_two_while_others_wait(
    at_once: int, history: list[tuple[str, str]]
) -> None:
    async def run() -> None:
        turns = FairTurns("the work", at_once, 1000)
        tasks: list[tuple[str, asyncio.Task[None]]] = []
        inside: dict[asyncio.Task[None] | None, tuple[str, asyncio.Event]] = {}

        async def work(client: str) -> None:
            async with turns.turn(client):
                ends = asyncio.Event()
                inside[asyncio.current_task()] = client, ends
                try:
                    await ends.wait()
                finally:
                    del inside[asyncio.current_task()]

        for client, what in history:
            mine = [task for name, task in tasks if name == client and not task.done()]
            if what == "ask":
                tasks.append((client, asyncio.create_task(work(client))))
            elif what == "hang up" and mine:
                mine[-1].cancel()
            elif mine and mine[0] in inside:
                inside[mine[0]][1].set()
            had = Counter(name for name, _ in inside.values())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            left = [(name, task) for name, task in tasks if not task.done()]
            assert len(inside) == min(at_once, len(left))
            has = Counter(name for name, _ in inside.values())
            without = {name for name, _ in left} - has.keys()
            for name in has:
                assert not without or has[name] <= max(1, had[name]), "none begins a second turn before another's first"
        for _, task in tasks:
            task.cancel()
        await asyncio.gather(*(task for _, task in tasks), return_exceptions=True)
        assert not len(turns._queue)
        assert not turns._running

    asyncio.run(run())
