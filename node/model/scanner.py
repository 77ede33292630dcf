"""Lists the folders of models on a disk where any access may fail at any time.

Entries that fail are left out, and each failure is logged once. Folders that did not change are not read again.
"""

import errno
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from node.core.errors import ModelBroken, PippinError
from node.model.digests import fingerprint
from node.model.file_names import DESCRIPTION, is_safe, is_small, is_weights
from node.model.layouts import Layouts, Stat, stat_of
from node.model.weights import files_for, layers_by_file

log = logging.getLogger(__name__)

GONE = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}
"""errnos of an entry that does not exist, or no longer: not a failure."""
OURS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""errnos of a process that lacks resources, which say nothing about the disk."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder with a config.json, as it was when last read."""

    path: Path
    files: Mapping[str, Stat]
    """Relevant files that can be accessed, by name."""
    whole: bool
    """Whether all weights of the text model are here."""
    revision: str
    """Commit of the model; for a complete local directory its fingerprint, for an incomplete one empty."""

    @property
    def bytes(self) -> int:
        """Of all files, on the disk: what several names link to counts once."""
        return sum({file: size for size, _, file in self.files.values()}.values())

    @property
    def has_tokenizer(self) -> bool:
        return any("token" in name or name.startswith("vocab") or name.endswith(".model") for name in self.files)


class FolderScanner:
    """Reads the disk; all methods block. OSError is raised only when this process is short of descriptors or memory."""

    def __init__(self, layouts: Layouts) -> None:
        self._layouts = layouts
        self._known: dict[Path, Folder] = {}
        self._logged: set[tuple[Path, str]] = set()
        """Failures that were logged, each with its path."""
        self._failures: set[tuple[Path, str]] = set()
        """Failures in the search under way."""
        self._gguf: set[Path] = set()
        """Folders with files of llama.cpp."""
        self.gguf: tuple[str, ...] = ()
        """Ids of the models of the last search that are there in GGUF only."""
        self.denied: tuple[Path, ...] = ()
        """What the system did not let the last search read: EPERM, as macOS answers for folders that it guards."""
        self._in_gguf: list[str] = []

    def search(self, roots: Sequence[Path], fetched: Path, cache: Path) -> list[tuple[str, Folder]]:
        """Ids and folders of all models: local ones, those from peers, those in the hub's cache."""
        self._failures, self._in_gguf = set(), []
        found = [pair for root in roots for pair in self._in_root(root)]
        found += [pair for root in self.folders(fetched) for pair in self._in_root(root, root.name)]
        for repository in self.folders(cache):
            kind, _, name = repository.name.partition("--")
            parts = name.split("--")
            if kind == "models" and len(parts) <= 2 and all(map(is_safe, parts)):
                found += [("/".join(parts), folder) for folder in self.snapshots(repository)]
        self._known = {folder.path: folder for _, folder in found if folder.path in self._known}
        self._logged = self._failures
        self.gguf = tuple(self._in_gguf)
        self.denied = tuple(sorted(path for path, what in self._failures if what == os.strerror(errno.EPERM)))
        return found

    def _in_root(self, root: Path, revision: str = "") -> Iterator[tuple[str, Folder]]:
        """Models at `root/name` and `root/org/name`; or the root is the folder of one model."""
        if is_safe(root.name) and (folder := self.read(root, revision)):
            yield root.name, folder
            return
        for outer in self.folders(root):
            yield from self._model(outer, outer.name, revision)
            for inner in self.folders(outer):
                yield from self._model(inner, f"{outer.name}/{inner.name}", revision)

    def _model(self, path: Path, model: str, revision: str) -> Iterator[tuple[str, Folder]]:
        folder = self.read(path, revision)
        if folder:
            yield model, folder
        if path in self._gguf and not (folder and folder.whole):
            self._in_gguf.append(model)

    def snapshots(self, repository: Path) -> list[Folder]:
        """Commits of a model in the hub's cache: `main` as last seen, then the others, most recent first.

        A change of the model's card alone makes a new commit, which may hold no weights yet.
        """
        found = [folder for path in self.folders(repository / "snapshots") if (folder := self.read(path, path.name))]
        if len(found) > 1:
            main, commit = repository / "refs" / "main", b""
            with self._noting(main), main.open("rb") as file:
                commit = file.read(100)
            latest = commit.decode("ascii", "replace").strip()
            changed = dict.fromkeys((folder.path for folder in found), 0.0)
            for path in changed:
                with self._noting(path):
                    changed[path] = path.stat().st_mtime
            found.sort(key=lambda folder: (folder.path.name == latest, changed[folder.path]), reverse=True)
        return found

    def read(self, path: Path, revision: str = "") -> Folder | None:
        """The model folder at the path, or None. Without `revision` it is a local one."""
        files = self._files(path)
        if "config.json" not in files:
            self._known.pop(path, None)
            return None
        known = self._known.get(path)
        if known and known.files == files:
            return known
        folder = Folder(path, files, whole=False, revision=revision)
        with self._noting(path):
            weights = self._map(path)
            if weights is not None:  # else try again next time, as the disk may recover
                whole = files.keys() >= layers_by_file(weights).keys()
                revision = revision or (fingerprint(path, files) if whole else "")
                folder = self._known[path] = Folder(path, files, whole, revision)
        return folder

    def has_stage(self, folder: Folder, start: int, end: int, ends: bool) -> bool:
        """Whether the weights of the stage [start, end), and with `ends` those outside of layers, are here.

        A partial model is usable only with a description, since a stage needs to know the other tensors.
        """
        if folder.whole or DESCRIPTION not in folder.files:
            return folder.whole
        weights = None
        with self._noting(folder.path):
            weights = self._map(folder.path)
        return weights is not None and folder.files.keys() >= files_for(weights, start, end, ends)

    # --- the disk -----------------------------------------------------------------------------------------------------

    def folders(self, path: Path) -> list[Path]:
        """Subfolders whose names can be part of a model's id, sorted by name."""
        found = []
        for entry in self._entries(path):
            with self._noting(path / entry.name):
                if is_safe(entry.name) and entry.is_dir():
                    found.append(path / entry.name)
        return sorted(found)

    def _files(self, path: Path) -> dict[str, Stat]:
        found = {}
        self._gguf.discard(path)
        for entry in self._entries(path):
            if entry.name.lower().endswith(".gguf"):
                self._gguf.add(path)
            with self._noting(path / entry.name):
                if (is_small(entry.name) or is_weights(entry.name)) and entry.is_file():
                    found[entry.name] = stat_of(entry.stat())
        return found

    def _entries(self, path: Path) -> list[os.DirEntry[str]]:
        found: list[os.DirEntry[str]] = []
        with self._noting(path), os.scandir(path) as entries:
            found.extend(entries)
        return found

    def _map(self, path: Path) -> dict[str, str] | None:
        """Map from tensor to file; None if the folder is damaged or of another format. Raises OSError."""
        try:
            return self._layouts.of(path).weight_map
        except ModelBroken as error:
            self._log_once(path, str(error))
        except (RecursionError, MemoryError) as error:
            self._log_once(path, f"its index is no index: {type(error).__name__}")
        except PippinError as error:  # not a failure: other programs use the hub's cache, too
            log.debug("%r: %s", str(path), error)
        return None

    # --- failures -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _noting(self, path: Path) -> Iterator[None]:
        """Whatever fails in the block is left out, and logged once."""
        try:
            yield
        except OSError as error:
            if error.errno in OURS:
                raise
            if error.errno not in GONE:
                self._log_once(path, error.strerror or str(error))

    def _log_once(self, path: Path, what: str) -> None:
        trouble = (path, what)
        self._failures.add(trouble)
        if trouble not in self._logged:
            self._logged.add(trouble)
            log.warning("left out: %r: %s", str(path), what)
