"""Who this node is, across restarts and changes of address: its data directory.

`node.json` holds a random id, an incarnation that rises with every start (so that peers tell a restarted node from its
former self), and the term of the last election (so that a restarted node never votes twice in one term). `lock` is
held while the node runs: two nodes with one id would each undo what the other does.

Without `--data-dir`, a second node on the same machine takes `~/.pippin/node-2`, a third `node-3`: starting `node`
twice gives two nodes, each of which finds its own identity again at the next start.
"""

import fcntl
import json
import os
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from node.core.errors import PippinError

DEFAULT_DIRECTORY = Path("~/.pippin")
_MOST_NODES = 64
"""On one machine by default; a bound, so that a directory that can never be locked is an error and not a search."""


class DataDirectoryUnusable(PippinError):
    """Another node holds it, it can't be written, or its file is damaged."""

    code = "data_directory_unusable"


@dataclass(frozen=True, slots=True)
class Identity:
    id: str
    incarnation: int
    term: int


class DataDirectory:
    """An open and locked data directory. Opening it begins a new incarnation. Close it last of all."""

    def __init__(self, path: Path, lock: int) -> None:
        """Made by `open_data_directory`, which holds the lock (a file descriptor)."""
        self.path = path
        self._lock = lock
        self._file = path / "node.json"
        self.identity = self._begin()

    def save_term(self, term: int) -> None:
        """Written through to the disk before it returns. A lower term than the saved one changes nothing."""
        if term > self.identity.term:
            self.identity = self._save(replace(self.identity, term=term))

    def close(self) -> None:
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> Identity:
        try:
            former = _parse(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            former = Identity(id=secrets.token_hex(8), incarnation=0, term=0)
        except (ValueError, KeyError, TypeError) as error:
            raise DataDirectoryUnusable(
                f"{self._file} is damaged: {error}.", hint="Delete it to start this machine as a new node."
            ) from error
        return self._save(replace(former, incarnation=former.incarnation + 1))

    def _save(self, identity: Identity) -> Identity:
        """To a new file that then takes the old one's name: a crash leaves the one or the other, never half of it."""
        draft = self._file.with_suffix(".json.new")
        with draft.open("w", encoding="utf-8") as file:
            json.dump(asdict(identity), file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._file)
        _sync_directory(self.path)
        return identity


def open_data_directory(asked: Path | None = None) -> DataDirectory:
    """The directory asked for, or the first free one of the defaults. Raises DataDirectoryUnusable."""
    default = DEFAULT_DIRECTORY.expanduser()
    paths = [asked] if asked else [default, *(default / f"node-{number}" for number in range(2, _MOST_NODES + 1))]
    try:
        for path in paths:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = _lock(path)
            if lock is not None:
                return _opened(path, lock)
    except OSError as error:
        raise DataDirectoryUnusable(
            f"The data directory {path} can't be used: {error.strerror}.", hint="Name another one with --data-dir."
        ) from error
    raise DataDirectoryUnusable(
        f"Another node uses the data directory {path}{_holder(path)}.",
        hint="Stop it, or give this node its own with --data-dir.",
    )


def _opened(path: Path, lock: int) -> DataDirectory:
    try:
        return DataDirectory(path, lock)
    except (OSError, DataDirectoryUnusable):
        os.close(lock)
        raise


def _lock(path: Path) -> int | None:
    """None if another process has it. The system frees it when its process ends, however it ends."""
    lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    os.ftruncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    return lock


def _holder(path: Path) -> str:
    pid = (path / "lock").read_text(encoding="utf-8")
    return f" (process {pid})" if pid else ""


def _parse(text: str) -> Identity:
    data = json.loads(text)
    identity = Identity(id=data["id"], incarnation=data["incarnation"], term=data["term"])
    if not (isinstance(identity.id, str) and identity.id):
        raise ValueError("its id is no text")
    if not (isinstance(identity.incarnation, int) and isinstance(identity.term, int)):
        raise TypeError("its incarnation or its term is no number")
    return identity


def _sync_directory(path: Path) -> None:
    """The rename itself is on the disk only once its directory is."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
