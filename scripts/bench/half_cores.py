"""Limits processes to half of a core each, so that three of them run at equal speed on two cores. Linux, as root.

The kernel gives each 1 ms of every 2 ms that it could run: its time slices are shorter than a step, but a frame may find
its receiver waiting for the next slice.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
SLICE_US, PERIOD_US = 1000, 2000


def are_possible() -> bool:
    return os.access(_parent(), os.W_OK) and (_is_first_version() or "cpu" in _enabled())


@contextlib.contextmanager
def half_cores(pids: Sequence[int]) -> Iterator[None]:
    """Inside, each of the processes has half of a core, with all its threads."""
    groups = [_parent() / f"pippin-bench-{pid}" for pid in pids]
    try:
        for group, pid in zip(groups, pids, strict=True):
            group.mkdir()
            if _is_first_version():
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(SLICE_US))
            else:
                (group / "cpu.max").write_text(f"{SLICE_US} {PERIOD_US}")
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for group in groups:
            if group.exists():
                for left in (group / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        (_parent() / "cgroup.procs").write_text(left)
                group.rmdir()


def _is_first_version() -> bool:
    return (GROUPS / "cpu" / "cgroup.procs").exists()


def _parent() -> Path:
    return GROUPS / "cpu" if _is_first_version() else GROUPS


def _enabled() -> list[str]:
    """Resources that groups below the root can limit."""
    control = GROUPS / "cgroup.subtree_control"
    return control.read_text().split() if control.exists() else []
