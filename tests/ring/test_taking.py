"""What stages take from disks, and what a worker and a driver do meanwhile: frames never wait for a disk."""

import asyncio
import threading
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.core.errors import RingLost
from node.core.frames import Forget, Frame, Restore, Tensor
from node.core.models import ModelVersion
from node.core.pool import Pool
from node.kv.blocks import BLOCK, chain_of, names_of, state_name
from node.kv.copies import KvCopies
from node.kv.exchange import KvExchange
from node.kv.store import KvStore
from node.ring.stored_kv import StoredKv
from node.ring.taking import Taking
from node.ring.worker import Worker
from tests.ring.test_worker import RING, Compute, Ended, NextHop, Runner, frame
from tests.ring.test_worker import Kv as Inherited

COUNT = 4
CHAIN = chain_of(ModelVersion("m"), range(COUNT * BLOCK))
ASKED = Restore(7, COUNT * BLOCK, BLOCK, CHAIN, 60.0)
AGAIN = replace(ASKED, chain=b"")
NO_CLIENT: Any = None


class Pieces(Compute):
    async def run_pieces(self, pieces: Generator[Any, None, Any]) -> Any:
        while True:
            await asyncio.sleep(0)
            try:
                next(pieces)
            except StopIteration as end:
                return end.value


class Kv(Inherited):
    """Of a stage of two caches."""

    blocks_of = range(2)
    block_bytes = state_bytes = 1 << 20
    trimmable = True
    cut_caches, state_caches = frozenset(blocks_of), frozenset[int]()

    def __init__(self) -> None:
        self.made: dict[int, int] = {}
        """The blocks of each prefix."""

    def restore(self, number: int, blocks: Sequence[Any], state: Any, tokens: int) -> Generator[float, None, int]:
        assert (state is not None) == bool(self.state_caches)
        yield 0.0
        self.made[number] = tokens // BLOCK
        return len(blocks) + (state is not None)


class Windowed(Kv):
    """Its second cache can't be cut."""

    trimmable = False
    cut_caches, state_caches = frozenset({0}), frozenset({1})


@pytest.fixture
def store(tmp_path: Path) -> KvStore:
    """A disk with all blocks."""
    found = KvStore(tmp_path / "kv", 1 << 30)
    found.open()
    tensor = Tensor("float32", (1, 1, BLOCK, 1), bytes(4 * BLOCK))
    for name in names_of(CHAIN):
        found.write("m", name, {cache: {"0.keys": tensor, "0.values": tensor} for cache in Kv.blocks_of})
    return found


@pytest.fixture
def pool() -> Pool:
    return Pool("kv", 1, 100)


@pytest.fixture
def stored(store: KvStore, pool: Pool) -> StoredKv:
    exchange = KvExchange(store, pool, NO_CLIENT, others=list, is_member=lambda _: True)
    fake: Any = Pieces()
    return StoredKv(exchange, fake, pool, KvCopies(exchange, lambda _: None))


@pytest.fixture
def hanging(pool: Pool) -> Iterator[threading.Event]:
    """The disk hangs until this is set."""
    free = threading.Event()
    pool.submit(free.wait)
    yield free
    free.set()


async def over(taking: Taking) -> Restore:
    while (told := taking.told(AGAIN)).pending:
        await taking.wait(ASKED.number, 0.01)
    return told


async def test_a_stage_makes_a_prefix_of_what_all_have(stored: StoredKv) -> None:
    kv: Any = Kv()
    taking = Taking(stored, kv)
    assert taking.told(ASKED).pending
    told = await over(taking)
    assert (told.tokens, told.longest) == (ASKED.tokens, ASKED.tokens)
    assert kv.made == {7: COUNT}


async def test_it_reads_no_more_than_another_stage_has(stored: StoredKv, hanging: threading.Event) -> None:
    kv: Any = Kv()
    taking = Taking(stored, kv)
    taking.told(ASKED)
    assert taking.told(replace(AGAIN, tokens=2 * BLOCK, longest=9)).pending
    hanging.set()
    assert (await over(taking)).tokens == 2 * BLOCK
    assert kv.made == {7: 2}


@pytest.mark.parametrize("missing", [0, 2])
async def test_blocks_behind_one_that_nobody_has_are_not_read(stored: StoredKv, missing: int) -> None:
    stored.exchange.store.discard(names_of(CHAIN)[missing], "it is to be missing")
    kv: Any = Kv()
    taking = Taking(stored, kv)
    taking.told(ASKED)
    assert (await over(taking)).tokens == missing * BLOCK
    assert kv.made == ({7: 2} if missing else {})


# --- states ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def states(stored: StoredKv) -> list[int]:
    """The blocks behind which the disk has a state."""
    behind = [1, COUNT - 1]
    for k in behind:
        name = state_name(names_of(CHAIN)[k - 1])
        stored.exchange.store.write("m", name, {0: {}, 1: {"0.0": Tensor("float32", (1, 3), bytes(12))}})
    return behind


async def test_the_last_state_is_taken_with_the_blocks_before_it(stored: StoredKv, states: list[int]) -> None:
    kv: Any = Windowed()
    taking = Taking(stored, kv)
    taking.told(ASKED)
    told = await over(taking)
    assert (told.tokens, kv.made) == (states[-1] * BLOCK, {7: states[-1]})


async def test_an_earlier_state_is_taken_where_another_stage_lacks_the_last_one(
    stored: StoredKv, states: list[int], hanging: threading.Event
) -> None:
    kv: Any = Windowed()
    taking = Taking(stored, kv)
    taking.told(ASKED)
    taking.told(replace(AGAIN, tokens=2 * BLOCK))
    hanging.set()
    assert (await over(taking)).tokens == states[0] * BLOCK
    assert kv.made == {7: states[0]}


async def test_also_if_that_is_heard_only_when_the_last_one_was_taken(stored: StoredKv, states: list[int]) -> None:
    kv: Any = Windowed()
    taking = Taking(stored, kv)
    taking.told(ASKED)
    assert (await over(taking)).tokens == states[-1] * BLOCK
    assert taking.told(replace(AGAIN, tokens=states[0] * BLOCK)).pending
    assert (await over(taking)).tokens == states[0] * BLOCK
    assert kv.made == {7: states[0]}


async def test_a_state_without_all_blocks_before_it_is_of_no_use(stored: StoredKv, states: list[int]) -> None:
    stored.exchange.store.discard(names_of(CHAIN)[states[0]], "it is to be missing")
    kv: Any = Windowed()
    taking = Taking(stored, kv)
    taking.told(ASKED)
    assert (await over(taking)).tokens == states[0] * BLOCK


async def test_a_stage_without_windows_takes_what_the_others_have(stored: StoredKv, states: list[int]) -> None:
    kv: Any = Windowed()
    kv.cut_caches, kv.state_caches = frozenset({0, 1}), frozenset[int]()
    taking = Taking(stored, kv)
    taking.told(ASKED)
    taking.told(replace(AGAIN, tokens=states[0] * BLOCK))
    assert (await over(taking)).tokens == states[0] * BLOCK
    assert kv.made == {7: states[0]}


# --- disks that hang, or are none -----------------------------------------------------------------------------------


async def test_a_stage_that_keeps_no_kv_says_so_at_once() -> None:
    kv: Any = Kv()
    told = Taking(None, kv).told(replace(ASKED, pending=True))
    assert (told.tokens, told.pending) == (0, True), "another stage still looks, in vain"


async def test_a_disk_that_hangs_costs_the_time_that_was_given(stored: StoredKv, hanging: threading.Event) -> None:
    kv: Any = Kv()
    taking = Taking(stored, kv)
    taking.told(replace(ASKED, seconds=0.01))
    assert not (await over(taking)).tokens
    assert not hanging.is_set()


async def test_nothing_is_read_from_a_disk_that_has_hung(
    stored: StoredKv, hanging: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.ring.stored_kv.HANGS_S", 0.0)
    kv: Any = Kv()
    taking = Taking(stored, kv)
    taking.told(ASKED)  # with a minute to read
    assert not (await over(taking)).tokens
    assert not hanging.is_set()


async def test_a_prefix_that_is_freed_meanwhile_is_not_made(stored: StoredKv, hanging: threading.Event) -> None:
    kv: Any = Kv()
    taking = Taking(stored, kv)
    taking.told(ASKED)
    (task,) = [each for each in asyncio.all_tasks() if each.get_name() == "KV of 7"]
    taking.forget([Forget(7)])
    hanging.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert not kv.made
    assert not taking.told(AGAIN).tokens


# --- at a worker ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def working(stored: StoredKv | None) -> AsyncIterator[tuple[Worker, "asyncio.Queue[Frame]", NextHop]]:
    coming, next_hop = asyncio.Queue[Frame](), NextHop()
    worker = Worker(RING, Pieces(), Runner(Kv()), next_hop.open, Ended(), is_last=True, stored=stored)

    async def frames() -> AsyncIterator[Frame]:
        while True:
            yield await coming.get()

    serving = asyncio.create_task(worker.serve_link(frame(0), frames()))
    await asyncio.wait_for(next_hop.sent.get(), 5)
    yield worker, coming, next_hop
    serving.cancel()
    await asyncio.wait([serving])


async def test_frames_go_on_while_the_disk_hangs(stored: StoredKv, hanging: threading.Event) -> None:
    async with working(stored) as (worker, coming, next_hop):
        for each in (frame(1, restore=ASKED), *map(frame, range(2, 9)), frame(9, restore=AGAIN)):
            coming.put_nowait(each)
        told = [(await asyncio.wait_for(next_hop.sent.get(), 5)).restore for _ in range(9)]
        assert [each.pending for each in told if each] == [True, True]
        hanging.set()
        for seq in range(10, 10_000):
            coming.put_nowait(frame(seq, restore=AGAIN))
            last = (await asyncio.wait_for(next_hop.sent.get(), 5)).restore
            if not last.pending:
                break
        assert (last.tokens, worker.runner.kv.made) == (ASKED.tokens, {7: COUNT})


async def test_a_worker_without_kv_on_its_disk_has_nothing() -> None:
    async with working(None) as (_, coming, next_hop):
        coming.put_nowait(frame(1, restore=ASKED))
        told = (await asyncio.wait_for(next_hop.sent.get(), 5)).restore
        assert (told.tokens, told.pending) == (0, False)


async def test_a_ring_that_ends_looks_no_longer(stored: StoredKv, hanging: threading.Event) -> None:
    async with working(stored) as (worker, coming, next_hop):
        coming.put_nowait(frame(1, restore=ASKED))
        await asyncio.wait_for(next_hop.sent.get(), 5)
        (task,) = [each for each in asyncio.all_tasks() if each.get_name() == "KV of 7"]
        await worker.close(RingLost("replaced"), keep=True)
        await asyncio.wait([task])
        assert task.cancelled()
