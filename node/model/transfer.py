"""Transfer of model files between nodes: the files that a directory offers, and those that a node takes.

Independent of the network: the rpc layer transports names, chunks and digests. All functions block on disk.
"""

import hashlib
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from node.core.errors import BadRequest, ModelBroken, ModelNotFound
from node.core.model_files import File
from node.model.digests import digest_of
from node.model.file_names import DESCRIPTION, is_small, is_weights
from node.model.layouts import Layout
from node.model.parts_file import PartsFile

_CHUNK = 1 << 20


# --- the sender -----------------------------------------------------------------------------------------------------


def offer(directory: Path) -> list[File]:
    """The files that a peer may read. They always include the description of the weights, on disk or not."""
    found = [
        File(path.name, path.stat().st_size, digest_of(path))
        for path in sorted(directory.iterdir())
        if path.name != DESCRIPTION and (is_small(path.name) or is_weights(path.name)) and path.is_file()
    ]
    description = _description(directory)
    return [File(DESCRIPTION, len(description), hashlib.sha256(description).hexdigest()), *found]


def read(directory: Path, name: str, offset: int = 0, length: int = 0) -> Iterator[tuple[bytes, str]]:
    """Iterate over (bytes, "") of `length` bytes of an offered file from `offset` on.

    If `length` is 0, to the end, and at last (b"", SHA-256 of the file in hex); chunks before the offset are then empty:
    they show the receiver progress while a long file is hashed. Before the first chunk, raises ModelNotFound for a name
    that is not offered, and BadRequest for an offset beyond the end of the file.
    """
    if name == DESCRIPTION:
        description = _description(directory)
        _check_offset(name, offset, len(description))
        file: BinaryIO = io.BytesIO(description)
    else:
        path = _offered(directory, name)
        _check_offset(name, offset, path.stat().st_size)
        file = path.open("rb")
    return _part(file, offset, length) if length else _chunks(file, offset)


def _check_offset(name: str, offset: int, size: int) -> None:
    """Raises BadRequest; without this check the whole file would be hashed for nothing."""
    if offset > size:
        raise BadRequest(f"{name} has {size:,} bytes, so none is at {offset:,}.")


def _description(directory: Path) -> bytes:
    return Layout(directory).weights.to_json()


def _offered(directory: Path, name: str) -> Path:
    """Path of an offered file. A plain name cannot leave the directory; a symlink in it may, as in the hub's cache."""
    path = directory / name
    if not (is_small(name) or is_weights(name)) or not path.is_file():
        raise ModelNotFound(f"{directory.name} offers no file {name[:100]!r}.")
    return path


def _part(file: BinaryIO, offset: int, length: int) -> Iterator[tuple[bytes, str]]:
    with file:
        file.seek(offset)
        while chunk := file.read(min(_CHUNK, length)):
            length -= len(chunk)
            yield chunk, ""


def _chunks(file: BinaryIO, offset: int) -> Iterator[tuple[bytes, str]]:
    sha256, at = hashlib.sha256(), 0
    with file:
        while chunk := file.read(_CHUNK):
            sha256.update(chunk)
            yield chunk[max(offset - at, 0) :], ""
            at += len(chunk)
    yield b"", sha256.hexdigest()


# --- the receiver ---------------------------------------------------------------------------------------------------


def has_file(directory: Path, file: File) -> bool:
    """Whether the directory has the file already, at its full size."""
    path = directory / _plain(file.name)
    return path.is_file() and path.stat().st_size == file.size


def open_parts(directory: Path, file: File) -> PartsFile:
    """Open a file that peers offer, to be written in parts. Raises NoCapacity, and NotReady while it is open elsewhere."""
    directory.mkdir(parents=True, exist_ok=True)
    return PartsFile(directory / _plain(file.name), file.size)


def link(directory: Path, paths: Iterable[Path]) -> None:
    """Link the files that the directory lacks into it; config.json last."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in sorted(paths, key=lambda path: path.name == "config.json"):
        own = directory / _plain(path.name)
        if not own.is_file():
            own.unlink(missing_ok=True)
            own.symlink_to(path.resolve())


def _plain(name: str) -> str:
    if not (is_small(name) or is_weights(name)):
        raise ModelBroken(f"A peer offers a file of the name {name[:100]!r}.")
    return name
