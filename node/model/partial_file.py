"""A file being received from the hub or from a node. A transfer that ends early can be resumed; the result is verified."""

import errno
import fcntl
import logging
import os
import threading
from pathlib import Path

from node.core.errors import ModelBroken, NoCapacity, NotReady
from node.model.digests import hash_for, mismatch, note_digest

log = logging.getLogger(__name__)

_CHUNK = 1 << 20
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}
"""errnos of file systems without locks. There two concurrent writers of a file damage it, which the digest reveals."""


class PartialFile:
    """A partial file, named `<name>.incomplete` until it is complete. Without `finish`, `close` keeps it to be resumed.

    `close` may be called from a thread other than the writer's.
    """

    @staticmethod
    def beside(path: Path) -> Path:
        """Where the part of a file lies that has come."""
        return path.with_name(path.name + ".incomplete")

    def __init__(self, path: Path, size: int, digest: str = "", name: str = "") -> None:
        """Open the file and hash what it has. `digest`: one like that which `finish` will get. `name`: what to call it.

        Raises NoCapacity, and NotReady while it is open elsewhere.
        """
        self._path = path
        self._digest = digest
        self._name = name or path.name
        self._part = self.beside(path)
        self._size = size
        self._using = threading.RLock()
        try:
            # Unbuffered: what `write` accepted is in the file, and a full disk shows there rather than in `close`.
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
        """Lock it until it is closed. Raises NotReady while it is open elsewhere."""
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
        if not is_same:  # the previous holder of the lock has renamed the file
            raise NotReady(f"{self._path.name} was fetched just now.")

    def _read(self) -> None:
        self._hash = hash_for(self._digest, self._size)
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK):
            self._hash.update(chunk)
        self.offset = self._file.tell()
        """Number of bytes received, from which the sender is to continue."""

    def close(self) -> None:
        """Close the file, after any write in progress."""
        with self._using:
            self._file.close()

    def write(self, chunk: bytes) -> None:
        """Append a chunk. Raises NoCapacity, and ModelBroken if the file becomes longer than its size."""
        with self._using:
            if self.offset + len(chunk) > self._size:
                self.restart()
                raise ModelBroken(f"{self._path.name} is longer than the {self._size:,} bytes that were offered.")
            left = memoryview(chunk)
            try:
                while left:
                    left = left[self._file.write(left) :]
            except OSError as error:
                raise self._unwritable(self.offset, error) from error
            self._hash.update(chunk)
            self.offset += len(chunk)

    def discard(self) -> None:
        self._part.unlink(missing_ok=True)
        self.close()

    def restart(self) -> None:
        """Discard the bytes received, and start over."""
        with self._using:
            self._file.truncate(0)
            self._read()

    def finish(self, digest: str | None, *, note: bool = False) -> Path:
        """Verify the size and, if given, the digest; then atomically rename the file to its final name. `note`: keep the
        digest beside it.

        Raises NoCapacity, and ModelBroken; when the digest is wrong, it starts over.
        """
        with self._using:
            if self.offset != self._size:
                raise ModelBroken(f"{self._path.name} ended after {self.offset:,} of {self._size:,} bytes.")
            if digest is not None and (found := self._hash.hexdigest()) != digest:
                self.restart()
                raise mismatch(self._name, digest, found)
            os.fsync(self._file.fileno())
            if digest and note:
                try:
                    note_digest(self._path, digest)
                except OSError as error:
                    raise self._unwritable(self._size, error) from error
            return self._part.replace(self._path)

    def _unwritable(self, offset: int, error: OSError) -> NoCapacity:
        log.warning("%s can't be written: %s", self._part, error.strerror)
        return NoCapacity(
            f"{self._path.name} cannot be written at byte {offset:,} of {self._size:,}: {error.strerror}.",
            hint="Free some space on the disk, and check the rights of the directory.",
        )
