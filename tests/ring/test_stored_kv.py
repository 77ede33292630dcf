"""What a stage's prefixes become on the disk."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from node.core.frames import Store
from node.core.models import ModelVersion
from node.core.pool import Pool
from node.kv.blocks import BLOCK, chain_of, encode, names_of
from node.kv.copies import KvCopies
from node.kv.exchange import KvExchange
from node.kv.store import KvStore
from node.ring.stored_kv import StoredKv
from tests.kv.test_store import kv

CHAIN = chain_of(ModelVersion("m"), range(6 * BLOCK))
NAMES = names_of(CHAIN)
SIZE = sum(map(len, encode(NAMES[0], kv(0, 1))))


class Compute:
    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


class FakeKv:
    blocks_of = range(1)
    cut_caches, state_caches = frozenset({0}), frozenset[int]()
    block_bytes = 1 << 30
    """So large that one is copied at a time."""

    def __init__(self) -> None:
        self.cut: list[int] = []

    def block(self, _prefix: int, index: int) -> Any:
        self.cut.append(index)
        return kv(0, 1)


def made(store: KvStore) -> StoredKv:
    pool: Any = Pool("kv", 1, 64)
    exchange: Any = KvExchange(store, pool, None, lambda: (), lambda _: True)  # type: ignore[arg-type]
    return StoredKv(exchange, Compute(), pool, KvCopies(exchange, lambda _: None))  # type: ignore[arg-type]


def begin(stored: StoredKv, ring_kv: Any, chain: bytes) -> None:
    stored.keep(ring_kv, "m", [Store(1, chain)])


async def keep(store: KvStore, ring_kv: Any, chain: bytes) -> None:
    begin(stored := made(store), ring_kv, chain)
    await stored.flush([ring_kv])


class SlowKv(FakeKv):
    """Its first block is cut when `go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def block(self, prefix: int, index: int) -> Any:
        self.begun.set()
        assert self.go_on.wait(60)
        return super().block(prefix, index)


class Thread(Compute):
    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.to_thread(function, *args)


async def test_a_ring_waits_for_its_own_kv_only_and_a_forgotten_one_is_stored_no_further(tmp_path: Path) -> None:
    store, slow, other = KvStore(tmp_path / "kv", 9 * SIZE), SlowKv(), FakeKv()
    store.open()
    stored = made(store)
    stored.compute = Thread()  # type: ignore[assignment]
    begin(stored, slow, CHAIN)
    assert await asyncio.to_thread(slow.begun.wait, 60)
    await stored.flush([other])  # type: ignore[list-item]
    assert not slow.go_on.is_set()
    assert slow.cut == []
    begin(stored, other, CHAIN[: 2 * 16])
    stored.forget([slow])  # type: ignore[list-item]
    slow.go_on.set()
    await stored.flush([other])  # type: ignore[list-item]
    assert (slow.cut, other.cut) == ([0], [1])


async def test_of_a_sequence_larger_than_the_budget_the_first_blocks_are_stored_once(tmp_path: Path) -> None:
    store, ring_kv = KvStore(tmp_path / "kv", 3 * SIZE + SIZE // 2), FakeKv()
    store.open()
    for _ in range(2):
        await keep(store, ring_kv, CHAIN)
        assert [bool(store.parts(name)) for name in NAMES] == [True] * 3 + [False] * 3
    assert ring_kv.cut == [0, 1, 2]


async def test_small_blocks_are_copied_together_if_they_are_not_on_the_disk(tmp_path: Path) -> None:
    """The compute thread is busy with chunks of prompts, in each of which several blocks are made."""
    store, ring_kv = KvStore(tmp_path / "kv", 9 * SIZE), FakeKv()
    ring_kv.block_bytes = 45 << 20
    store.open()
    store.write("m", NAMES[1], kv(0, 1))
    found: list[list[str]] = []

    class Watched(Compute):
        async def run(self, function: Callable[..., Any], *args: Any) -> Any:
            found.append([name for name in NAMES if store.parts(name)])
            return await super().run(function, *args)

    begin(stored := made(store), ring_kv, CHAIN)
    stored.compute = Watched()  # type: ignore[assignment]
    await stored.flush([ring_kv])  # type: ignore[list-item]
    assert ring_kv.cut == [0, 2, 3, 4, 5]
    assert all(store.parts(name) for name in NAMES)
    assert [len(names) for names in found] == [1, 1, 3, 3, 5]


async def test_the_rest_of_a_sequence_does_not_drive_out_its_beginning(tmp_path: Path) -> None:
    store, ring_kv = KvStore(tmp_path / "kv", 3 * SIZE + SIZE // 2), FakeKv()
    store.open()
    store.write("m", NAMES[0], kv(0, 1))
    for other in ("e" * 32, "f" * 32):
        store.write("m", other, kv(0, 1))
    await keep(store, ring_kv, CHAIN[: 2 * 16])
    assert [bool(store.parts(name)) for name in NAMES[:2]] == [True, True]
    assert ring_kv.cut == [1]
