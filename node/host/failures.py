"""The record of a node's ends with exit code 70, in its data directory, and how long it waits after several of them.

launchd and systemd start a service again after ten seconds. A GPU that has failed for good would then fail on, and each
failure may bring the whole machine down; so the node itself waits before it starts.
"""

import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

log = logging.getLogger(__name__)

WINDOW_S = 600.0
"""Two ends count as one after the other if the node ran for less time than this between them. It is the longest pause, too."""
_FILE = "failures.json"


@dataclass(frozen=True, slots=True)
class Failures:
    in_row: int = 0
    """Ends one after the other."""
    ended_at: float = 0.0
    """Unix seconds of the last one."""

    @property
    def pause_s(self) -> float:
        """Seconds from the last end to the next start: none after a single end, then twice as many each time."""
        return min(30.0 * 2.0 ** min(self.in_row - 2, 16), WINDOW_S) if self.in_row > 1 else 0.0

    def wait_s(self, now: float, booted_at: float) -> float:
        """Seconds until the next start: none since the machine was restarted; never more than the pause, also if the clock
        was set back.
        """
        if booted_at > self.ended_at:
            return 0.0
        return min(self.pause_s, max(0.0, self.ended_at + self.pause_s - now))

    def with_end(self, now: float) -> "Failures":
        ran_s = now - self.ended_at - self.pause_s
        return Failures(self.in_row + 1 if ran_s < WINDOW_S else 1, now)


def read(directory: Path) -> Failures:
    """No failures if there is no record, or a damaged one."""
    try:
        found = json.loads((directory / _FILE).read_text("utf-8"))
        return Failures(int(found["in_row"]), float(found["ended_at"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return Failures()


def note_end(directory: Path) -> None:
    """Record that this node ends with 70 now. On a disk that can't be written it won't wait after its next start."""
    try:
        (directory / _FILE).write_text(json.dumps(asdict(read(directory).with_end(time.time()))), "utf-8")
    except OSError as error:
        log.warning("can't record in %s that this node failed: %s", directory, error.strerror)


def wait_after_failures(directory: Path) -> None:
    """Sleep for as long as the record says. Signals end the process meanwhile."""
    failures = read(directory)
    if seconds := failures.wait_s(time.time(), psutil.boot_time()):
        log.warning(
            "this node ended with 70 %d times in a row: it waits %.0f s before it starts. Look for the cause in its log; "
            "restart this machine if its GPU failed. To start at once, delete %s",
            failures.in_row,
            seconds,
            directory / _FILE,
        )
        time.sleep(seconds)
