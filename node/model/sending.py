"""The files that a directory offers to peers: those that mlx-lm and transformers read, and nothing that lies elsewhere."""

import hashlib
import io
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from node.core.errors import BadRequest, ModelNotFound
from node.core.model_files import File
from node.model.digests import digest_of
from node.model.file_names import DESCRIPTION, is_small, is_weights
from node.model.layouts import Layouts, Stat, stat_of

log = logging.getLogger(__name__)

_CHUNK = 1 << 20


class Sender:
    """Independent of the network: the rpc layer transports names, chunks and digests. Its methods block on disk."""

    def __init__(self, layouts: Layouts, hub_cache: Path) -> None:
        self._layouts = layouts
        self._hub_cache = hub_cache
        self._digests: dict[Path, tuple[Stat, str]] = {}
        """Of files, each as it was at that time."""
        self._told: set[Path] = set()
        """Directories of which a file lies elsewhere, as the log has said."""

    def offer(self, directory: Path) -> list[File]:
        """The files that a peer may read. They always include the description of the weights, on disk or not."""
        description, digest = self._layouts.of(directory).told
        found = [File(DESCRIPTION, len(description), digest)]
        for path in sorted(directory.iterdir()):
            if path.name != DESCRIPTION and (is_small(path.name) or is_weights(path.name)):
                with suppress(ModelNotFound), self._opened(directory, path.name) as file:
                    now = stat_of(os.fstat(file.fileno()))
                    if path not in self._digests or self._digests[path][0] != now:
                        self._digests[path] = now, digest_of(path)
                    found.append(File(path.name, now[0], self._digests[path][1]))
        return found

    def read(self, directory: Path, name: str, offset: int = 0, length: int = 0) -> Iterator[tuple[bytes, str]]:
        """Iterate over (bytes, "") of `length` bytes of an offered file from `offset` on.

        If `length` is 0, to the end, and at last (b"", SHA-256 of the file in hex); chunks before the offset are then
        empty: they show the receiver progress while a long file is hashed. Before the first chunk, raises ModelNotFound
        for a name that is not offered, and BadRequest for an offset beyond the end of the file.
        """
        if name == DESCRIPTION:
            description, _ = self._layouts.of(directory).told
            file: BinaryIO = io.BytesIO(description)
        else:
            file = self._opened(directory, name)
        size = file.seek(0, os.SEEK_END)
        if offset > size:  # else the whole file would be hashed for nothing
            file.close()
            raise BadRequest(f"{name} has {size:,} bytes, so none is at {offset:,}.")
        return _part(file, offset, length) if length else _chunks(file, offset)

    def _opened(self, directory: Path, name: str) -> BinaryIO:
        """Open an offered file. Raises ModelNotFound, also for a link that leads elsewhere than into the hub's cache.

        A plain name can't leave the directory. A link is judged after the file was opened, so that no other file can take
        its place.
        """
        try:
            if not (is_small(name) or is_weights(name)):
                raise FileNotFoundError
            file = os.fdopen(os.open(directory / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
        except OSError as error:
            raise _not_offered(directory, name) from error
        if not self._may_read(directory, directory / name, os.fstat(file.fileno())):
            file.close()
            if directory not in self._told and (directory / name).is_symlink():
                self._told.add(directory)
                log.warning(
                    "%s of %s is not offered to other nodes, as it is a link to a file elsewhere", name, directory
                )
            raise _not_offered(directory, name)
        return file

    def _may_read(self, directory: Path, path: Path, opened: os.stat_result) -> bool:
        try:
            place = path.resolve(strict=True)
            is_opened = os.path.samestat(opened, place.lstat())
        except OSError:
            return False
        is_blob = place.parent.name == "blobs" and place.parents[2] == self._hub_cache.resolve()
        if self._hub_cache in directory.parents[2:3]:  # a user may have linked its repository to another disk
            is_blob = is_blob or place.parent == (directory.parents[1] / "blobs").resolve()
        return is_opened and stat.S_ISREG(opened.st_mode) and (is_blob or place.parent == directory.resolve())


def _not_offered(directory: Path, name: str) -> ModelNotFound:
    return ModelNotFound(f"{directory.name} offers no file {name[:100]!r}.")


def _part(file: BinaryIO, offset: int, length: int) -> Iterator[tuple[bytes, str]]:
    with file:
        file.seek(offset)
        while chunk := file.read(min(_CHUNK, length)):
            length -= len(chunk)
            yield chunk, ""


def _chunks(file: BinaryIO, offset: int) -> Iterator[tuple[bytes, str]]:
    sha256, at = hashlib.sha256(), 0
    with file:
        file.seek(0)
        while chunk := file.read(_CHUNK):
            sha256.update(chunk)
            yield chunk[max(offset - at, 0) :], ""
            at += len(chunk)
    yield b"", sha256.hexdigest()
