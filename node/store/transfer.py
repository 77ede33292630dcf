"""Model files from one node to another: what a directory offers, and a receiver that resumes and verifies.

Pure of any network: the rpc layer carries names, chunks and digests. All functions block on disk.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from node.core.errors import ModelBroken, ModelNotFound, NoCapacity, NotReady
from node.store.files import DESCRIPTION, is_small, is_weights
from node.store.weights import Weights

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class File:
    name: str
    size: int


# --- the sender -----------------------------------------------------------------------------------------------------


def offer(directory: Path) -> list[File]:
    """The files that a peer may read. The description of the weights is always among them, on disk or not."""
    found = [
        File(path.name, path.stat().st_size)
        for path in sorted(directory.iterdir())
        if path.name != DESCRIPTION and (is_small(path.name) or is_weights(path.name)) and path.is_file()
    ]
    return [File(DESCRIPTION, len(_description(directory))), *found]


def read(directory: Path, name: str, offset: int = 0) -> Iterator[bytes]:
    """The bytes of an offered file from `offset` on. Refuses, before the first chunk, every name not offered."""
    if name == DESCRIPTION:
        return iter([_description(directory)[offset:]])
    return _chunks(_offered(directory, name), offset)


def digest(directory: Path, name: str) -> str:
    """SHA-256 of an offered file, to be sent after its bytes."""
    if name == DESCRIPTION:
        return hashlib.sha256(_description(directory)).hexdigest()
    with _offered(directory, name).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _description(directory: Path) -> bytes:
    return Weights.read(directory).to_json()


def _offered(directory: Path, name: str) -> Path:
    """A plain name cannot leave the directory. A link in it may: the hub's cache is made of links to its blobs."""
    path = directory / name
    if not (is_small(name) or is_weights(name)) or not path.is_file():
        raise ModelNotFound(f"{directory.name} offers no file {name[:100]!r}.")
    return path


def _chunks(path: Path, offset: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(offset)
        while chunk := file.read(_CHUNK):
            yield chunk


# --- the receiver ---------------------------------------------------------------------------------------------------


def small(listing: Sequence[File]) -> list[File]:
    """Of what a peer offers: tokenizer, template, index, description, and last the config, by which a model is known."""
    return sorted((file for file in listing if is_small(file.name)), key=lambda file: file.name == "config.json")


def needed(listing: Sequence[File], weights: Weights, start: int, end: int, ends: bool) -> list[File]:
    """Of what a peer offers: the small files, and the weights of the stage [start, end).

    Raises ModelNotFound if the peer lacks some of them itself.
    """
    files = weights.files_for(start, end, ends)
    if lacking := files - {file.name for file in listing}:
        raise ModelNotFound(f"The peer lacks {len(lacking)} of the stage's {len(files)} files, {min(lacking)} for one.")
    return [*small(listing), *(file for file in listing if file.name in files)]


class Receiver:
    """Puts files into a directory, each under `<name>.part` until it is whole and verified."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def holds(self, file: File) -> bool:
        path = self._target / _plain(file.name)
        return path.is_file() and path.stat().st_size == file.size

    def open(self, file: File) -> "Incoming":
        """Opens a file for the bytes from `offset` on; to be used in a `with` block."""
        self._target.mkdir(parents=True, exist_ok=True)
        return Incoming(self._target / _plain(file.name), file.size)


class Incoming:
    """One file on its way in. Closed without `finish`, it keeps what came for another time."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._size = size
        # Unbuffered: what `write` accepted is in the file, and a full disk shows there and not at closing.
        self._file = self._part.open("a+b", buffering=0)
        self._sha256 = hashlib.sha256()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise NotReady(f"{path.name} is already being fetched.") from error
        if os.fstat(self._file.fileno()).st_size > size:
            self._file.truncate(0)
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK):
            self._sha256.update(chunk)
        self.offset = self._file.tell()
        """How many bytes are here; the sender is to go on from there."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def write(self, chunk: bytes) -> None:
        if self.offset + len(chunk) > self._size:
            self._discard()
            raise ModelBroken(f"{self._path.name} is longer than the {self._size:,} bytes that were offered.")
        left = memoryview(chunk)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise NoCapacity(
                f"{self._path.name} cannot be written at byte {self.offset:,} of {self._size:,}: {error.strerror}.",
                hint="Free some space on the disk.",
            ) from error
        self._sha256.update(chunk)
        self.offset += len(chunk)

    def finish(self, sha256: str) -> Path:
        """Verifies size and digest, then gives the file its name, in one step."""
        if self.offset != self._size:
            raise ModelBroken(f"{self._path.name} ended after {self.offset:,} of {self._size:,} bytes.")
        if self._sha256.hexdigest() != sha256:
            self._discard()
            raise ModelBroken(f"{self._path.name} was damaged on its way: its SHA-256 is not {sha256}.")
        os.fsync(self._file.fileno())
        return self._part.replace(self._path)

    def _discard(self) -> None:
        """What came is wrong at an unknown place: the next try starts at zero."""
        self._file.truncate(0)


def _plain(name: str) -> str:
    if not (is_small(name) or is_weights(name)):
        raise ModelBroken(f"A peer offers a file of the name {name[:100]!r}.")
    return name
