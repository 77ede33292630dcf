"""Model files from one node to another: what a directory offers, and what a node takes of it.

Pure of any network: the rpc layer carries names, chunks and digests. All functions block on disk.
"""

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from node.core.errors import BadRequest, ModelBroken, ModelNotFound
from node.store.files import DESCRIPTION, is_small, is_weights
from node.store.incoming import Incoming
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


def read(directory: Path, name: str, offset: int = 0) -> Iterator[tuple[bytes, str]]:
    """The bytes of an offered file from `offset` on, and at last, with no bytes, the SHA-256 of the whole file.

    Chunks of what is before the offset are empty: they tell a receiver that a long file is being read. Raises, before the
    first chunk, ModelNotFound for every name not offered, and BadRequest for an offset behind the file's end.
    """
    if name == DESCRIPTION:
        description = _description(directory)
        _check_offset(name, offset, len(description))
        return _chunks(io.BytesIO(description), offset)
    path = _offered(directory, name)
    _check_offset(name, offset, path.stat().st_size)
    return _chunks(path.open("rb"), offset)


def _check_offset(name: str, offset: int, size: int) -> None:
    """Else the whole file would be read for nothing."""
    if offset > size:
        raise BadRequest(f"{name} has {size:,} bytes, so none is at {offset:,}.")


def _description(directory: Path) -> bytes:
    return Weights.read(directory).to_json()


def _offered(directory: Path, name: str) -> Path:
    """A plain name cannot leave the directory. A link in it may: the hub's cache is made of links to its blobs."""
    path = directory / name
    if not (is_small(name) or is_weights(name)) or not path.is_file():
        raise ModelNotFound(f"{directory.name} offers no file {name[:100]!r}.")
    return path


def _chunks(file: BinaryIO, offset: int) -> Iterator[tuple[bytes, str]]:
    sha256, at = hashlib.sha256(), 0
    with file:
        while chunk := file.read(_CHUNK):
            sha256.update(chunk)
            yield chunk[max(offset - at, 0) :], ""
            at += len(chunk)
    yield b"", sha256.hexdigest()


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
    """Puts files into a directory."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def holds(self, file: File) -> bool:
        path = self._target / _plain(file.name)
        return path.is_file() and path.stat().st_size == file.size

    def open(self, file: File) -> Incoming:
        """Opens a file for the bytes from `offset` on; to be used in a `with` block."""
        self._target.mkdir(parents=True, exist_ok=True)
        return Incoming(self._target / _plain(file.name), file.size)


def _plain(name: str) -> str:
    if not (is_small(name) or is_weights(name)):
        raise ModelBroken(f"A peer offers a file of the name {name[:100]!r}.")
    return name
