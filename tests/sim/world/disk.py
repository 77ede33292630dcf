"""A simulated machine's disk, under the product's own store of KV, and the threads that read and write it.

It is full, slow, hangs, or fails with EIO, as told; what it reads has flipped bits now and then; a power cut loses, cuts or empties
what was written just before, and a kill leaves a file half written.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from node.core.clock import now
from node.core.frames import Tensor
from node.ring.stored_kv import HANGS_S

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable

BLOCK = 8
"""Tokens of a block, in place of 256: the prompts of this world are short."""
HANG_S = HANGS_S + 1
"""How long a job takes while the disk hangs."""
DAMAGE = 0.05
"""Of the files that are read."""
FREE = 10 << 30
_UNSYNCED_S = 5.0
"""What was written within this time may not be on the disk when the power goes."""


def as_tensor(keys: list[int]) -> Tensor:
    """A layer's keys of the tokens of a block."""
    return Tensor("uint32", (1, 1, len(keys), 2), array("q", keys).tobytes())


def as_keys(tensor: Tensor) -> list[int]:
    return array("q", bytes(tensor.data)).tolist()


def flip(data: bytes, rng: random.Random) -> bytes:
    """The same bytes but for one bit."""
    broken = bytearray(data)
    broken[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(broken)


@dataclass
class File:
    data: bytes
    written_at: float
    """Of the simulation's time."""
    used_at: float
    """By the machine's own clock."""


@dataclass(eq=False)
class Disk:
    """It outlives the processes."""

    rng: random.Random
    wall: Callable[[], float]
    """The machine's own clock."""
    time: Callable[[], float]
    """The simulation's."""
    faults: Counter[str]
    """Counts what happens to files."""
    files: dict[str, File] = field(default_factory=dict[str, File])
    is_full: bool = False
    hides_it: bool = False
    """A quota: there seems to be room, but a file can't be written to its end."""
    is_slow: bool = False
    hangs: bool = False
    """No job for KV ends in time."""
    failing: float = 0.0
    """Share of the calls that end with EIO."""

    @property
    def is_sick(self) -> bool:
        return self.is_full or self.is_slow or self.hangs or self.failing > 0

    def heal(self) -> None:
        self.is_full = self.hides_it = self.is_slow = self.hangs = False
        self.failing = 0.0

    def call(self) -> None:
        """A call of the system that reads or writes. Raises OSError."""
        if self.failing and self.rng.random() < self.failing:
            self.faults["calls that end with EIO"] += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def write(self) -> None:
        self.call()
        if self.is_full:
            self.faults["writes to a full disk"] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @property
    def job_s(self) -> float:
        """Time of a job for KV."""
        return HANG_S if self.hangs else self.rng.uniform(0.2, 3.0) if self.is_slow else self.rng.uniform(0.0005, 0.02)

    # --- what it loses ------------------------------------------------------------------------------------------------

    def lose_power(self) -> None:
        """The product does not sync KV: what was written last may be absent, cut off, or empty blocks of the disk."""
        for name, file in list(self.files.items()):
            if file.written_at < self.time() - _UNSYNCED_S or self.rng.random() < 0.5:
                continue
            self.faults["files lost or torn by power cuts"] += 1
            match self.rng.choice(["gone", "cut", "zeros"]):
                case "gone":
                    del self.files[name]
                case "cut":
                    file.data = file.data[: self.rng.randrange(len(file.data) + 1)]
                case "zeros":
                    at = self.rng.randrange(len(file.data) + 1)
                    file.data = file.data[:at] + bytes(len(file.data) - at)

    def leave_unfinished(self) -> None:
        """A process was killed while it wrote a file."""
        if self.files and self.rng.random() < 0.3:
            self.faults["files half written by kills"] += 1
            name, file = self.rng.choice(list(self.files.items()))
            self.files[str(PurePosixPath(name).with_suffix(".part"))] = File(file.data[:100], self.time(), self.wall())


@dataclass(frozen=True, slots=True)
class DiskPath:
    """In place of pathlib.Path. Directories need not be made."""

    text: str
    disk: Disk = field(compare=False, repr=False)

    def _other(self, path: PurePosixPath) -> DiskPath:
        return DiskPath(str(path), self.disk)

    def __truediv__(self, name: str) -> DiskPath:
        return self._other(PurePosixPath(self.text) / name)

    @property
    def name(self) -> str:
        return PurePosixPath(self.text).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.text).suffix

    @property
    def parent(self) -> DiskPath:
        return self._other(PurePosixPath(self.text).parent)

    def with_suffix(self, suffix: str) -> DiskPath:
        return self._other(PurePosixPath(self.text).with_suffix(suffix))

    def mkdir(self, **_: Any) -> None:
        self.disk.call()

    def chmod(self, _mode: int) -> None:
        self.disk.call()

    def glob(self, _pattern: str) -> list[DiskPath]:
        self.disk.call()
        return [DiskPath(name, self.disk) for name in self.disk.files if name.startswith(f"{self.text}/")]

    def stat(self) -> SimpleNamespace:
        self.disk.call()
        return SimpleNamespace(st_size=len(self._file.data), st_mtime=self._file.used_at)

    def open(self, _mode: str) -> Reader:
        self.disk.call()
        return Reader(self.disk, self._file.data)

    def unlink(self) -> None:
        self.disk.call()
        if self.disk.files.pop(self.text, None) is None:
            raise FileNotFoundError(self.text)

    def rename(self, target: DiskPath) -> None:
        self.disk.call()
        self.disk.files[target.text] = self.disk.files.pop(self.text)

    def touch(self) -> None:
        self.disk.call()
        self._file.used_at = self.disk.wall()

    @property
    def _file(self) -> File:
        if file := self.disk.files.get(self.text):
            return file
        raise FileNotFoundError(self.text)


class Reader(io.BytesIO):
    def __init__(self, disk: Disk, data: bytes) -> None:
        if data and disk.rng.random() < DAMAGE:
            disk.faults["bits flipped on disks"] += 1
            data = flip(data, disk.rng)
        super().__init__(data)
        self._disk = disk

    def read(self, size: int | None = -1, /) -> bytes:
        self._disk.call()
        return super().read(size)


class Writer:
    def __init__(self, path: DiskPath) -> None:
        path.disk.call()
        self._disk = path.disk
        self._file = path.disk.files[path.text] = File(b"", path.disk.time(), path.disk.wall())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def writelines(self, parts: Iterable[bytes]) -> None:
        for part in parts:
            self._disk.write()
            self._file.data += part


def _usage(path: DiskPath) -> SimpleNamespace:
    return SimpleNamespace(free=0 if path.disk.is_full and not path.disk.hides_it else FREE)


SYSTEM = {
    "node.kv.store.os": SimpleNamespace(
        open=lambda path, _flags, _mode: Writer(path),
        fdopen=lambda writer, _mode: writer,
        utime=DiskPath.touch,
        O_WRONLY=os.O_WRONLY,
        O_CREAT=os.O_CREAT,
        O_TRUNC=os.O_TRUNC,
    ),
    "node.kv.store.shutil": SimpleNamespace(disk_usage=_usage),
    "node.kv.store.time": SimpleNamespace(monotonic=now),
}
"""What the store of KV asks of the system, by the names to patch."""


class DiskPool:
    """In place of node.core.pool.Pool: a job takes a moment."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._waiting: dict[object, float] = {}
        """When each job that has not ended was begun."""

    async def run(self, job: Callable[..., Any], *args: Any) -> Any:
        self._waiting[token := object()] = now()
        try:
            await asyncio.sleep(self._disk.job_s)
            return job(*args)
        finally:
            del self._waiting[token]

    def submit(self, job: Callable[..., Any], *args: Any) -> None:
        """A job for which nobody waits."""
        if not self._disk.hangs:
            job(*args)

    def oldest_s(self) -> float:
        return max((now() - begun for begun in self._waiting.values()), default=0.0)
