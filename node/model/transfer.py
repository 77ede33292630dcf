"""Transfer of model files between nodes: the files that a directory offers, and those that a node takes.

Independent of the network: the rpc layer transports names, chunks and digests. All functions block on disk.
"""

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from node.core.errors import BadRequest, ModelBroken, ModelNotFound
from node.model.file_names import DESCRIPTION, is_small, is_weights
from node.model.partial_file import PartialFile
from node.model.weights import Weights

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class File:
    name: str
    size: int


# --- the sender -----------------------------------------------------------------------------------------------------


def offer(directory: Path) -> list[File]:
    """The files that a peer may read. They always include the description of the weights, on disk or not."""
    found = [
        File(path.name, path.stat().st_size)
        for path in sorted(directory.iterdir())
        if path.name != DESCRIPTION and (is_small(path.name) or is_weights(path.name)) and path.is_file()
    ]
    return [File(DESCRIPTION, len(_description(directory))), *found]


def read(directory: Path, name: str, offset: int = 0) -> Iterator[tuple[bytes, str]]:
    """Iterate over (bytes, "") of an offered file from `offset` on, and at last (b"", SHA-256 of the file in hex).

    Chunks before the offset are empty: they show the receiver progress while a long file is hashed. Before the first
    chunk, raises ModelNotFound for a name that is not offered, and BadRequest for an offset beyond the end of the file.
    """
    if name == DESCRIPTION:
        description = _description(directory)
        _check_offset(name, offset, len(description))
        return _chunks(io.BytesIO(description), offset)
    path = _offered(directory, name)
    _check_offset(name, offset, path.stat().st_size)
    return _chunks(path.open("rb"), offset)


def _check_offset(name: str, offset: int, size: int) -> None:
    """Raises BadRequest; without this check the whole file would be hashed for nothing."""
    if offset > size:
        raise BadRequest(f"{name} has {size:,} bytes, so none is at {offset:,}.")


def _description(directory: Path) -> bytes:
    return Weights.read(directory).to_json()


def _offered(directory: Path, name: str) -> Path:
    """Path of an offered file. A plain name cannot leave the directory; a symlink in it may, as in the hub's cache."""
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


def small(offered: Sequence[File]) -> list[File]:
    """The small files that a peer offers. config.json comes last, as a folder counts as a model once it has one."""
    return sorted((file for file in offered if is_small(file.name)), key=lambda file: file.name == "config.json")


def needed(offered: Sequence[File], weights: Weights, start: int, end: int, ends: bool) -> list[File]:
    """The small files that a peer offers, and its weights of the stage [start, end).

    Raises ModelNotFound if the peer lacks some of them itself.
    """
    files = weights.files_for(start, end, ends)
    if lacking := files - {file.name for file in offered}:
        raise ModelNotFound(f"The peer lacks {len(lacking)} of the stage's {len(files)} files, {min(lacking)} for one.")
    return [*small(offered), *(file for file in offered if file.name in files)]


def has_file(directory: Path, file: File) -> bool:
    """Whether the directory has the file already, at its full size."""
    path = directory / _plain(file.name)
    return path.is_file() and path.stat().st_size == file.size


def open_partial(directory: Path, file: File) -> PartialFile:
    """Open a file that a peer offers, to be written from its `offset` on. Use it in a `with` block."""
    directory.mkdir(parents=True, exist_ok=True)
    return PartialFile(directory / _plain(file.name), file.size)


def _plain(name: str) -> str:
    if not (is_small(name) or is_weights(name)):
        raise ModelBroken(f"A peer offers a file of the name {name[:100]!r}.")
    return name
