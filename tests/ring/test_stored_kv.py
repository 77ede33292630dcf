"""What a stage's prefixes become on the disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from node.core.frames import Keep
from node.core.models import ModelVersion
from node.core.pool import Pool
from node.kv.blocks import BLOCK, chain_of, encode, names_of
from node.kv.exchange import Exchange
from node.kv.store import KvStore
from node.ring.stored_kv import StoredKv
from tests.kv.test_store import kv

CHAIN = chain_of(ModelVersion("m"), range(6 * BLOCK))
NAMES = names_of(CHAIN)
SIZE = sum(map(len, encode(NAMES[0], kv(0, 1))))


class Compute:
    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


class Runner:
    blocks_of = range(1)

    def __init__(self) -> None:
        self.cut: list[int] = []

    def block(self, _prefix: int, index: int) -> Any:
        self.cut.append(index)
        return kv(0, 1)


async def keep(store: KvStore, runner: Runner, chain: bytes) -> None:
    pool: Any = Pool("kv", 1, 64)
    exchange: Any = Exchange(store, pool, None, lambda: (), lambda _: True)  # type: ignore[arg-type]
    stored = StoredKv(exchange, Compute(), pool)  # type: ignore[arg-type]
    stored.keep(runner, "m", [Keep(0, 0, 1, len(chain) // 16 * BLOCK, chain)])  # type: ignore[arg-type]
    await stored.flush()


async def test_of_a_sequence_larger_than_the_budget_the_first_blocks_are_stored_once(tmp_path: Path) -> None:
    store, runner = KvStore(tmp_path / "kv", 3 * SIZE + SIZE // 2), Runner()
    store.open()
    for _ in range(2):
        await keep(store, runner, CHAIN)
        assert [bool(store.parts(name)) for name in NAMES] == [True] * 3 + [False] * 3
    assert runner.cut == [0, 1, 2]


async def test_the_rest_of_a_sequence_does_not_drive_out_its_beginning(tmp_path: Path) -> None:
    store, runner = KvStore(tmp_path / "kv", 3 * SIZE + SIZE // 2), Runner()
    store.open()
    store.write("m", NAMES[0], kv(0, 1))
    for other in ("e" * 32, "f" * 32):
        store.write("m", other, kv(0, 1))
    await keep(store, runner, CHAIN[: 2 * 16])
    assert [bool(store.parts(name)) for name in NAMES[:2]] == [True, True]
    assert runner.cut == [1]
