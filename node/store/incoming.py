"""A file on its way in, from a peer or the hub: what came is kept, however the transfer ends, and verified in the end."""

import errno
import fcntl
import hashlib
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from node.core.errors import ModelBroken, NoCapacity, NotReady

_CHUNK = 1 << 20
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}
"""What a file system without locks says: two that write one file there damage it, and the digest tells."""


class Incoming:
    """Under `<name>.incomplete` until it is whole. Closed without `finish`, it keeps what came for another time.

    It may be closed from another thread than the one that writes.
    """

    def __init__(self, path: Path, size: int) -> None:
        """Reads what is there already. Raises NotReady while another one has it open, NoCapacity."""
        self._path = path
        self._part = path.with_name(path.name + ".incomplete")
        self._size = size
        self._using = threading.Lock()
        try:
            # Unbuffered: what `write` accepted is in the file, and a full disk shows there and not at closing.
            self._file = self._part.open("a+b", buffering=0)
        except OSError as error:
            raise self._unwritable(0, error) from error
        try:
            self._lock()
            if os.fstat(self._file.fileno()).st_size > size:
                self._file.truncate(0)
            self._read()
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NotReady(f"{self._path.name} is already being fetched.") from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        try:
            is_same = os.path.samestat(os.fstat(self._file.fileno()), self._part.stat())
        except FileNotFoundError:
            is_same = False
        if not is_same:  # who had the lock has given the file its name
            raise NotReady(f"{self._path.name} was fetched just now.")

    def _read(self) -> None:
        self._sha256 = hashlib.sha256()
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK):
            self._sha256.update(chunk)
        self.offset = self._file.tell()
        """How many bytes are here; the sender is to go on from there."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """After the write that is under way."""
        with self._using:
            self._file.close()

    def write(self, chunk: bytes) -> None:
        """Raises ModelBroken when it becomes longer than it should be, NoCapacity."""
        with self._using:
            if self.offset + len(chunk) > self._size:
                self._file.truncate(0)
                raise ModelBroken(f"{self._path.name} is longer than the {self._size:,} bytes that were offered.")
            left = memoryview(chunk)
            try:
                while left:
                    left = left[self._file.write(left) :]
            except OSError as error:
                raise self._unwritable(self.offset, error) from error
            self._sha256.update(chunk)
            self.offset += len(chunk)

    def restart(self) -> None:
        """What came is of no use: the next bytes are the first."""
        with self._using:
            self._file.truncate(0)
            self._read()

    def finish(self, sha256: str | None) -> Path:
        """Verifies size and, if it is known, the digest; then gives the file its name, in one step.

        Raises ModelBroken; when the digest is wrong, the next try starts at zero.
        """
        with self._using:
            if self.offset != self._size:
                raise ModelBroken(f"{self._path.name} ended after {self.offset:,} of {self._size:,} bytes.")
            if sha256 is not None and self._sha256.hexdigest() != sha256:
                self._file.truncate(0)
                raise ModelBroken(f"{self._path.name} was damaged on its way: its SHA-256 is not {sha256[:64]}.")
            os.fsync(self._file.fileno())
            return self._part.replace(self._path)

    def _unwritable(self, offset: int, error: OSError) -> NoCapacity:
        return NoCapacity(
            f"{self._part} cannot be written at byte {offset:,} of {self._size:,}: {error.strerror}.",
            hint="Free some space on the disk, and check the rights of the directory.",
        )
