"""The node's identity across restarts and changes of address, stored in its data directory.

`node-key.pem` holds the node's private key, whose public half is its id. `node.json` holds an incarnation that
increases with each start (so that peers can distinguish a restarted node from its earlier process), the term of the
last election (so that a restarted node never votes twice in one term), and the id of the machine. Two nodes with one id
would undo each other's work. So `lock` is locked while the node runs, and a directory that was copied to another machine
gets a new key there.

Without `--data-dir`, a second node on the same machine uses `~/.pippin/node-2`, a third `node-3`: starting `node` twice
gives two nodes, each of which finds its own identity again at the next start.
"""

import fcntl
import json
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TextIO

from node.core.errors import PippinError
from node.core.limits import COUNTER_LIMIT
from node.host.node_key import NodeKey, from_pem, id_of, new_key, to_pem
from node.host.private_file import protect

log = logging.getLogger(__name__)

DEFAULT_DIRECTORY = Path("~/.pippin")
_MAX_DIRECTORIES = 64
"""Maximum default directories on one machine: a directory that cannot be locked must not make the search endless."""


class DataDirectoryUnusable(PippinError):
    """Another node uses the directory, it cannot be written, or one of its files is damaged."""

    code = "data_directory_unusable"


@dataclass(frozen=True, slots=True)
class Identity:
    id: str
    incarnation: int
    term: int
    machine: str = ""
    """Id of the machine on which the node started last, as far as it was known."""


class DataDirectory:
    """An open and locked data directory. Opening it begins a new incarnation."""

    def __init__(self, path: Path, machine: str) -> None:
        """Called by `open_data_directory`, which has locked it."""
        self.path = path
        self._machine = machine
        self._file = path / "node.json"
        self._key_file = path / "node-key.pem"
        self.key = self._read_key() or self._make_key()
        self.identity = self._begin()

    def is_here(self) -> bool:
        """Whether the directory has not been deleted, nor its disk removed, since it was opened."""
        return self._key_file.exists()

    def save_term(self, term: int) -> None:
        """Save the term, synced to disk before this returns. A term lower than the saved one is ignored."""
        if term > self.identity.term:
            self.identity = self._save(replace(self.identity, term=term))

    def _begin(self) -> Identity:
        node_id = id_of(self.key.public_key())
        try:
            former = _parse(self._file.read_text(encoding="utf-8"), node_id)
        except FileNotFoundError:
            former = Identity(node_id, incarnation=0, term=0)
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(self._file, error) from error
        if self._machine and former.machine and self._machine != former.machine:
            self.key = self._make_key()
            former = replace(former, id=id_of(self.key.public_key()))
            log.warning(
                "%s was copied from another machine: this node has made itself a new id, %s", self.path, former.id
            )
        return self._save(replace(former, incarnation=former.incarnation + 1, machine=self._machine or former.machine))

    def _save(self, identity: Identity) -> Identity:
        _write(self._file, json.dumps(asdict(identity)).encode())
        return identity

    def _read_key(self) -> NodeKey | None:
        """Read the private key; None if there is none yet."""
        try:
            with self._key_file.open("rb") as file:
                protect(file.fileno(), self._key_file)
                return from_pem(file.read())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise _damaged(self._key_file, error) from error

    def _make_key(self) -> NodeKey:
        key = new_key()
        _write(self._key_file, to_pem(key))
        return key


@contextmanager
def open_data_directory(asked: Path | None = None, *, machine: str = "") -> Iterator[DataDirectory]:
    """Open the directory asked for, or the first unused default. Leave the context after all else has ended.

    `machine`: this machine's id, if it has one. Raises DataDirectoryUnusable.
    """
    default = DEFAULT_DIRECTORY.expanduser()
    paths = [asked] if asked else [default, *(default / f"node-{number}" for number in range(2, _MAX_DIRECTORIES + 1))]
    with ExitStack() as locks:
        try:
            for path in paths:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                if _lock(locks.enter_context((path / "lock").open("a+", encoding="utf-8"))):
                    break
            else:
                pid = (path / "lock").read_text(encoding="utf-8")
                raise DataDirectoryUnusable(
                    f"Another node uses the data directory {path}{f' (process {pid})' if pid else ''}.",
                    hint="Stop that node, or give this one another directory with --data-dir.",
                )
            data = DataDirectory(path, machine)
        except OSError as error:
            raise DataDirectoryUnusable(
                f"The data directory {path} can't be used: {error.strerror}.",
                hint="Choose another one with --data-dir.",
            ) from error
        yield data


def _lock(file: TextIO) -> bool:
    """Lock the file and write this process's id into it; False if another process has the lock.

    The system releases it when its process ends in any way.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return True


def _damaged(file: Path, error: Exception) -> DataDirectoryUnusable:
    return DataDirectoryUnusable(f"{file} is damaged: {error}.", hint="Delete it to start this machine as a new node.")


def _parse(text: str, node_id: str) -> Identity:
    """Parse node.json. Its id is informative only: the actual id follows from the key."""
    data = json.loads(text)
    incarnation, term = data["incarnation"], data["term"]
    if not (isinstance(incarnation, int) and isinstance(term, int)):
        raise TypeError("its incarnation or its term is not an integer")
    machine = str(data.get("machine", ""))
    return Identity(node_id, _plausible("incarnation", incarnation), _plausible("term", term), machine)


def _plausible(what: str, count: int) -> int:
    """Return the count, or 0 if it must be damaged: actual counts never get near half of the limit that peers accept.

    Starting over is safe: peers accept a lower incarnation once they have not heard the higher one for a while, and
    tell the current term.
    """
    if 0 <= count < COUNTER_LIMIT // 2:
        return count
    log.warning("the saved %s of %d is implausible; it starts again at 0", what, count)
    return 0


def _write(target: Path, data: bytes) -> None:
    """Replace a file atomically: a crash leaves the old or the new one, never a part of it."""
    draft = target.with_name(f"{target.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        _sync(file.fileno())
    draft.replace(target)
    directory = os.open(target.parent, os.O_RDONLY)  # only a sync of the directory puts a rename on the disk
    try:
        _sync(directory)
    finally:
        os.close(directory)


def _sync(descriptor: int) -> None:
    """Return once the disk itself has the file. On a Mac, fsync leaves it in the cache of the drive, which a power cut
    empties.
    """
    if hasattr(fcntl, "F_FULLFSYNC"):
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError:  # not every file system can, such as one of a server
            os.fsync(descriptor)
    else:
        os.fsync(descriptor)
