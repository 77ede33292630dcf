"""A file being received from peers, in parts that come in any order. A transfer that ends early is resumed, also by
another process; the result is verified.
"""

import logging
import os
import threading
from array import array
from pathlib import Path

from node.core.errors import NoCapacity
from node.model.digests import digest_like, mismatch, note_digest
from node.model.partial_file import lock
from node.model.parts import PART

log = logging.getLogger(__name__)

_COUNT = 4
"""Bytes of a part's count in the journal."""


class PartsFile:
    """A file named `<name>.incomplete` until it is complete, with a journal `<name>.parts`: how many bytes of each part
    are there. Its methods block; they may be called from several threads.
    """

    def __init__(self, path: Path, size: int) -> None:
        """Raises NoCapacity, and NotReady while it is open elsewhere."""
        self._path = path
        self._size = size
        self._part = path.with_name(path.name + ".incomplete")
        self._journal_path = path.with_name(path.name + ".parts")
        self._using = threading.Lock()
        try:
            # Unbuffered: a full disk shows in `write` rather than in `close`.
            self._file = os.fdopen(os.open(self._part, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
        except OSError as error:
            raise self._unwritable(0, error) from error
        try:
            lock(self._file, self._part)
            self._journal = os.fdopen(os.open(self._journal_path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
            self.counts = self._read_counts()
        except OSError as error:
            self._file.close()
            raise self._unwritable(0, error) from error
        except BaseException:
            self._file.close()
            raise

    def _read_counts(self) -> list[int]:
        """Bytes of each part that are there. The file of a version without a journal has no gaps."""
        here = min(os.fstat(self._file.fileno()).st_size, self._size)
        most = array("I", (max(0, min(PART, here - start)) for start in range(0, self._size, PART)))
        journal = self._journal.read(_COUNT * len(most))
        if len(journal) < _COUNT * len(most):
            os.pwrite(self._journal.fileno(), most.tobytes(), 0)
            return list(most)
        return [count if count <= full else 0 for count, full in zip(array("I", journal), most, strict=True)]

    def write(self, at: int, chunk: bytes) -> None:
        """Write a chunk of one part, after what is there of it. Raises NoCapacity."""
        part, within = divmod(at, PART)
        left = memoryview(chunk)
        with self._using:
            try:
                while left:
                    written = os.pwrite(self._file.fileno(), left, at)
                    left, at, within = left[written:], at + written, within + written
                self.counts[part] = within
                os.pwrite(self._journal.fileno(), array("I", [within]).tobytes(), part * _COUNT)
            except OSError as error:
                raise self._unwritable(at, error) from error

    def finish(self, digest: str) -> None:
        """Verify the digest of the whole file, then rename it to its final name.

        Raises ModelBroken if the digest is another one: the next try starts with nothing.
        """
        with self._using:
            found = digest_like(digest, self._part)
            if found != digest:
                self._file.truncate(0)
                self._journal.truncate(0)
                raise mismatch(self._path.name, digest, found)
            os.fsync(self._file.fileno())
            try:
                note_digest(self._path, digest)
            except OSError as error:
                raise self._unwritable(self._size, error) from error
            self._part.replace(self._path)
            self._journal_path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove it, and close it."""
        self._part.unlink(missing_ok=True)
        self._journal_path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Close the file, after any write in progress."""
        with self._using:
            self._file.close()
            self._journal.close()

    def _unwritable(self, offset: int, error: OSError) -> NoCapacity:
        log.warning("%s can't be written: %s", self._part, error.strerror)
        return NoCapacity(
            f"{self._path.name} cannot be written at byte {offset:,} of {self._size:,}: {error.strerror}.",
            hint="Free some space on the disk, and check the rights of the directory.",
        )
