"""Looks for issues of this machine that a node can work with, but that make it worse."""

import platform
import resource
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from node.core.health import disk_low, few_descriptors, not_nodejs, rosetta
from node.core.types import Issue
from node.host.nodejs import first_node

LOW_DISK = 5 * 2**30
"""Bytes; a quantized model of 8 G parameters has as many."""
NEEDED_DESCRIPTORS = 1024


def examine(node: str, folders: Iterable[Path]) -> tuple[Issue, ...]:
    """Issues of the machine of a node of this name. `folders`: where it keeps models. May wait for a disk."""
    return (*_disk_issues(node, folders), *_descriptor_issues(node))


def examine_terminal(programs: Path) -> Iterator[Issue]:
    """Issues of the shell in which this program was started. `programs`: the directory of Pippin's own."""
    if (other := first_node()) and other.resolve().parent != programs.resolve():
        yield not_nodejs(str(other))
    if platform.system() == "Darwin" and platform.machine() != "arm64":
        yield rosetta()


def _disk_issues(node: str, folders: Iterable[Path]) -> Iterator[Issue]:
    """One for each disk."""
    seen = set()
    for folder in folders:
        existing = next(each for each in (folder, *folder.parents) if each.exists())
        disk = existing.stat().st_dev
        free = shutil.disk_usage(existing).free
        if disk not in seen and free < LOW_DISK:
            yield disk_low(node, str(folder), free)
        seen.add(disk)


def _descriptor_issues(node: str) -> Iterator[Issue]:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < NEEDED_DESCRIPTORS:
        yield few_descriptors(node, limit, NEEDED_DESCRIPTORS)
