"""The models in whose load this node's process crashed, in its data directory.

What is being loaded is in `loads.json`. A fault of native code (a segmentation fault, a bus error, an abort) has Python's
faulthandler write where it was to `crash.txt` before the process ends; neither a kill nor a power cut writes there. So
the next start knows both.
"""

import faulthandler
import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from node.core.models import HeldModel
from node.core.reports import Crash

log = logging.getLogger(__name__)

_MOST = 16
"""Crashes that are kept."""


class Crashes:
    def __init__(self, directory: Path) -> None:
        """`directory`: the node's data directory. From here on a fault of this process is written there."""
        self._path, trace = directory / "loads.json", directory / "crash.txt"
        begun, self._crashed = _read(self._path)
        self._loading: list[Crash] = []
        try:
            first = trace.read_text("utf-8", "replace").partition("\n")[0] if trace.exists() else ""
            if cause := first.rpartition(": ")[2][:100]:  # such as "Segmentation fault"
                log.error(
                    "this node ended by a fault (%s), see %s", cause, trace.rename(trace.with_name("last-crash.txt"))
                )
                known = [each for each in self._crashed if each.model not in {load.model for load in begun}]
                self._crashed = [*known, *(replace(load, at=int(time.time()), cause=cause) for load in begun)][-_MOST:]
            # It stays open as long as the process lives.
            faulthandler.enable(os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        except OSError as error:
            log.warning("can't record in %s whether this node crashes: %s", directory, error.strerror)
        self._write()

    def crashed(self) -> tuple[Crash, ...]:
        """Those after which no load of the model has succeeded."""
        return tuple(self._crashed)

    @contextmanager
    def loading(self, files: HeldModel) -> Iterator[None]:
        """A model is being loaded. Once that has succeeded, its crashes are forgotten."""
        load = Crash(files.id, files.revision)
        self._loading.append(load)
        self._write()
        try:
            yield
            self._crashed = [each for each in self._crashed if each.model != files.id]
        finally:
            self._loading.remove(load)
            self._write()

    def _write(self) -> None:
        content = {
            "loading": [asdict(each) for each in self._loading],
            "crashed": [asdict(each) for each in self._crashed],
        }
        try:
            self._path.write_text(json.dumps(content), "utf-8")
        except OSError as error:
            log.warning("can't record in %s what is being loaded: %s", self._path, error.strerror)


def _read(path: Path) -> tuple[list[Crash], list[Crash]]:
    """What was being loaded, and the crashes; none if there is no record, or a damaged one."""
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        loading, crashed = ([_crash(**each) for each in found[name]] for name in ("loading", "crashed"))
    except (OSError, ValueError, KeyError, TypeError):
        return [], []
    return loading, crashed


def _crash(model: str, revision: str, cause: str, at: int) -> Crash:
    return Crash(str(model), str(revision), str(cause), int(at))
