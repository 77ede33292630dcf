"""The blocks of KV on this node's disk: at most as many bytes as its budget, the least recently used go first.

A file is written beside and renamed, so a node that is killed leaves no half of one; whatever else happens to a file, its digests
tell (see blocks.py), and it then counts as absent. All methods may be called in any thread; those that say so block on the disk.
"""

import errno
import logging
import os
import re
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from node.core.frames import Tensor
from node.core.units import format_bytes
from node.kv.blocks import Damaged, Kv, decode, encode

log = logging.getLogger(__name__)

_PAUSE_S = 60.0
"""Time after a write that failed in which nothing is written: the disk is full, or broken."""
_SHARE, _MOST = 10, 20 << 30
"""Without a budget: this part of what is free, and at most so many bytes."""
_LEFT = 1 << 30
"""Bytes of the disk that are left to others, whatever the budget: the node itself keeps what it must remember there."""
_MAX_FILES = 1 << 16
_NAME = re.compile(r"([0-9a-f]{32})\.(\d{1,6})-(\d{1,6})\.safetensors")
_UNFINISHED = ".part"


@dataclass(frozen=True, slots=True)
class BlockFile:
    """A file: the caches [first, end) of a block."""

    name: str
    first: int
    end: int
    path: Path
    folder: str
    """Of the model."""
    size: int


class KvStore:
    def __init__(self, directory: Path, budget: int | None) -> None:
        """`budget`: most bytes; None: a share of what is free on the disk. Nothing is read or written before `open`."""
        self._given = budget
        self.budget = 0
        self.failure = ""
        """Why the last write failed; empty if it did not."""
        self._directory = directory
        self._lock = threading.Lock()
        self._files: OrderedDict[Path, BlockFile] = OrderedDict()
        """The least recently used first."""
        self._parts: dict[str, list[BlockFile]] = {}
        """By the block's name."""
        self._bytes = 0
        self._written: set[Path] = set()
        """By this process."""
        self._removed = 0
        """How often blocks were removed for good: one that was being written meanwhile goes, too."""
        self._paused_until = 0.0

    def open(self) -> None:
        """Find the blocks of earlier processes, and delete what those did not finish. Blocks on the disk; if that fails,
        nothing is stored for a while.
        """
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(OSError):  # a volume without permissions
                self._directory.chmod(0o700)
            for part in sorted(self._found(), key=lambda each: each[0]):
                with self._lock:  # the event loop wants it, too
                    self._add(part[1])
            free = shutil.disk_usage(self._directory).free + self._bytes
        except OSError as error:
            self._failed(error)
            return
        self.budget = min(free // _SHARE, _MOST) if self._given is None else self._given
        self._make_room(0)
        if self._files:
            log.info("%s of KV of earlier sessions is on the disk", format_bytes(self.bytes))

    def _found(self) -> list[tuple[float, BlockFile]]:
        """The blocks on the disk, each with the time of its last use."""
        found: list[tuple[float, BlockFile]] = []
        for path in self._directory.glob("*/*"):
            with suppress(OSError):
                if path.suffix == _UNFINISHED:
                    path.unlink()
                elif name := _NAME.fullmatch(path.name):
                    status = path.stat()
                    part = BlockFile(name[1], int(name[2]), int(name[3]), path, path.parent.name, status.st_size)
                    found.append((status.st_mtime, part))
        return found

    def _failed(self, error: OSError) -> None:
        self.failure = error.strerror or str(error)
        self._paused_until = time.monotonic() + _PAUSE_S
        log.warning("no KV is written for %.0f s: %s", _PAUSE_S, error)

    @property
    def bytes(self) -> int:
        return self._bytes

    def size(self, name: str) -> int:
        """Bytes of what is here of a block."""
        with self._lock:
            return sum(part.size for part in self._parts.get(name, ()))

    def parts(self, name: str) -> list[tuple[int, int]]:
        """The ranges [first, end) of caches of a block that are here."""
        with self._lock:
            return [(part.first, part.end) for part in self._parts.get(name, ())]

    def held(self, name: str, wanted: Collection[int]) -> set[int]:
        """Those of the wanted caches of a block that are here."""
        return {cache for first, end in self.parts(name) for cache in range(first, end)} & set(wanted)

    def read(self, name: str, wanted: Iterable[int]) -> dict[int, dict[str, Tensor]]:
        """The wanted caches of a block, as far as they are here. Blocks on the disk."""
        found: dict[int, dict[str, Tensor]] = {}
        with self._lock:
            parts = list(self._parts.get(name, ()))
        for part in parts:
            lacking = (set(wanted) - found.keys()) & set(range(part.first, part.end))
            if not lacking:
                continue
            try:
                with part.path.open("rb") as file:
                    found |= decode(file, name, lacking)
            except (Damaged, OSError) as error:
                log.warning("KV on the disk is ignored: %s", error)
                self._delete(part)
        return found

    def discard(self, name: str, why: str) -> None:
        """Delete a block that is of no use, or wrong. Blocks on the disk."""
        with self._lock:
            parts = list(self._parts.get(name, ()))
        if parts:
            log.warning("KV on the disk is ignored: block %s: %s", name, why)
        for part in parts:
            self._delete(part)

    def used(self, names: Iterable[str]) -> None:
        """Count a use of the blocks of a sequence: the last ones are to go before the first. Blocks on the disk."""
        with self._lock:
            parts = [part for name in reversed(list(names)) for part in self._parts.get(name, ())]
            for part in parts:
                self._files.move_to_end(part.path)
        for part in parts:
            with suppress(OSError):
                os.utime(part.path)  # for the order after the next start

    @property
    def may_write(self) -> bool:
        """Also if the disk failed when it was opened: the next write opens it."""
        can = self.budget or (self.failure and self._given != 0)
        return bool(can) and time.monotonic() >= self._paused_until

    def write(self, model: str, name: str, kv: Kv) -> None:
        """Store caches of a block, whose numbers follow each other, unless they are here. Blocks on the disk."""
        if self.may_write and not self.budget:
            self.open()
        if not self.may_write or not self.held(name, kv.keys()) < kv.keys():
            return
        first, end = min(kv), max(kv) + 1
        parts = encode(name, kv)
        if (size := sum(map(len, parts))) > self.budget:
            return
        path = self._folder(model) / f"{name}.{first}-{end}.safetensors"
        # Two peers may send one block at once.
        unfinished, removed = path.with_suffix(f".{threading.get_ident()}{_UNFINISHED}"), self._removed
        self._make_room(size)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if shutil.disk_usage(path.parent).free < size + _LEFT:
                raise OSError(errno.ENOSPC, f"less than {format_bytes(_LEFT)} is free")
            with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.writelines(parts)
            unfinished.rename(path)
        except OSError as error:
            self._failed(error)
            with suppress(OSError):
                unfinished.unlink()
            return
        self.failure = ""
        part = BlockFile(name, first, end, path, path.parent.name, size)
        with self._lock:
            self._add(part)
            self._written.add(path)
            is_unwanted = removed != self._removed
        if is_unwanted:
            self._delete(part)

    def drop_written(self) -> None:
        """Delete what this process has written: the device that computed it has failed. Blocks on the disk."""
        with self._lock:
            self._removed += 1
            parts = [self._files[path] for path in self._written]
        for part in parts:
            self._delete(part)

    def remove(self, model: str) -> int:
        """Delete all blocks of a model. Returns their bytes. Blocks on the disk."""
        folder = self._folder(model).name
        with self._lock:
            self._removed += 1
            files = list(self._files.values())
        parts = [part for part in files if part.folder == folder]
        for part in parts:
            self._delete(part)
        return sum(part.size for part in parts)

    def _folder(self, model: str) -> Path:
        """A name for any model's id, which may be too long for one or have slashes."""
        return self._directory / sha256(model.encode()).hexdigest()[:32]

    def _add(self, part: BlockFile) -> None:
        if old := self._files.pop(part.path, None):
            self._forget(old)
        self._files[part.path] = part
        self._parts.setdefault(part.name, []).append(part)
        self._bytes += part.size

    def _forget(self, part: BlockFile) -> None:
        self._bytes -= part.size
        self._written.discard(part.path)
        self._parts[part.name].remove(part)
        if not self._parts[part.name]:
            del self._parts[part.name]

    def _delete(self, part: BlockFile) -> None:
        with self._lock:
            if self._files.pop(part.path, None):
                self._forget(part)
        with suppress(OSError):
            part.path.unlink()

    def _make_room(self, size: int) -> None:
        while True:
            with self._lock:
                if not self._files or (self._bytes + size <= self.budget and len(self._files) < _MAX_FILES):
                    return
                oldest = next(iter(self._files.values()))
            self._delete(oldest)
