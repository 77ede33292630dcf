"""The part of a simulated machine's disk that has KV, and the threads that read and write it."""

from __future__ import annotations

import asyncio
import io
from array import array
from typing import TYPE_CHECKING, Any

from node.core.clock import now
from node.core.frames import Tensor
from node.kv.blocks import Damaged, decode, encode
from node.ring.stored_kv import HANGS_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from tests.sim.world.machine import Machine

BLOCK = 8
"""Tokens of a block, in place of 256: the prompts of this world are short."""
HANG_S = HANGS_S + 1
"""How long a job takes while the disk hangs."""
DAMAGE = 0.02
"""Of the files that are read."""


def as_tensor(keys: list[int]) -> Tensor:
    """A layer's keys of the tokens of a block."""
    return Tensor("uint32", (1, 1, BLOCK, 2), array("q", keys).tobytes())


def as_keys(tensor: Tensor) -> list[int]:
    return array("q", bytes(tensor.data)).tolist()


class DiskPool:
    """In place of node.core.pool.Pool: a job takes a moment."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._rng = machine.world.of_disks
        self._waiting: dict[object, float] = {}
        """When each job that has not ended was begun."""

    async def run(self, job: Callable[..., Any], *args: Any) -> Any:
        self._waiting[token := object()] = now()
        try:
            await asyncio.sleep(self._rng.uniform(0.0005, 0.02))
            if self._machine.disk_hangs:
                await asyncio.sleep(HANG_S)
            return job(*args)
        finally:
            del self._waiting[token]

    def submit(self, job: Callable[..., Any], *args: Any) -> None:
        """A job for which nobody waits."""
        if not self._machine.disk_hangs:
            job(*args)

    def oldest_s(self) -> float:
        return max((now() - begun for begun in self._waiting.values()), default=0.0)


class DiskStore:
    """In place of node.kv.store.KvStore. Its blocks are the machine's, so they outlive the process; some are lost or damaged."""

    budget = 1 << 30

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._files = machine.kv
        self._rng = machine.world.of_disks

    @property
    def may_write(self) -> bool:
        return not self._machine.disk_is_full

    def parts(self, name: str) -> list[tuple[int, int]]:
        return [(first, end) for first, end in self._files.get(name, {})]

    def held(self, name: str, wanted: Collection[int]) -> set[int]:
        return {cache for first, end in self.parts(name) for cache in range(first, end)} & set(wanted)

    def read(self, name: str, wanted: Collection[int]) -> dict[int, dict[str, Tensor]]:
        found: dict[int, dict[str, Tensor]] = {}
        for span, data in list(self._files.get(name, {}).items()):
            broken = bytearray(data)
            if self._rng.random() < DAMAGE:
                broken[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
            try:
                found |= decode(io.BytesIO(broken), name, set(wanted) - found.keys())
            except Damaged:
                self._files[name].pop(span, None)
        return found

    def write(self, _model: str, name: str, kv: Any) -> None:
        if len(self._files) > 200:
            self._files.pop(self._rng.choice(list(self._files)))
        self._files.setdefault(name, {})[min(kv), max(kv) + 1] = b"".join(encode(name, kv))

    def size(self, name: str) -> int:
        return sum(map(len, self._files.get(name, {}).values()))

    def discard(self, name: str) -> None:
        self._files.pop(name, None)

    def used(self, names: Iterable[str]) -> None:
        pass
