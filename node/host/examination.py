"""Looks for issues of this machine that a node can work with, but that make it worse."""

import platform
import resource
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from node.core.addresses import join_host_port
from node.core.nodes import Advert
from node.core.reports import Issue
from node.core.units import format_bytes
from node.core.warning_codes import Code
from node.host.identity import DataDirectory
from node.host.local_network import local_network_hint
from node.host.mac_program import full_disk_access_hint
from node.host.memory import stranded
from node.host.nodejs import nodes_on_path
from node.host.ports import is_dropped

LOW_DISK = 5 * 2**30
"""Bytes; a quantized model of 8 G parameters has as many."""
NEEDED_DESCRIPTORS = 1024
MOST_TRIED = 4
"""Maximum nodes, and addresses of each, to which a connection is tried: each may take half a second."""


def examine(
    node: str,
    folders: Iterable[Path],
    *,
    data: DataDirectory | None = None,
    denied: Sequence[Path] = (),
    deaf: str = "",
    unreached: Sequence[Advert] = (),
) -> tuple[Issue, ...]:
    """Issues of the machine of a node of this name. May wait for a disk, and some seconds for connections.

    `folders`: where it keeps models. `data`: its own directory. `denied`: what it may not read of them. `deaf`: why multicast DNS does not work.
    `unreached`: nodes that it seems unable to call.
    """
    found = [*_disk_issues(node, folders)]
    if data and not data.is_here():
        found.append(Code.DATA_GONE.issue(node=node, folder=without_home(data.path)))
    if denied:
        where = without_home(denied[0])
        found.append(Code.FOLDER_DENIED.issue(node=node, folder=where, hint=full_disk_access_hint() or None))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < NEEDED_DESCRIPTORS:
        found.append(Code.FEW_DESCRIPTORS.issue(node=node, limit=limit, needed=NEEDED_DESCRIPTORS))
    if lost := stranded():
        found.append(Code.WIRED_MEMORY.issue(node=node, bytes=format_bytes(lost)))
    if deaf:
        hint = f"{Code.NO_MULTICAST.hint} {local_network_hint()}".strip()
        found.append(Code.NO_MULTICAST.issue(node=node, reason=deaf, hint=hint))
    for advert in unreached[:MOST_TRIED]:
        addresses, port = advert.hint.addresses[:MOST_TRIED], advert.hint.grpc_port
        if is_dropped(addresses, port):
            address = join_host_port(addresses[0], port)
            found.append(Code.NODE_UNREACHABLE.issue(node=node, other=advert.name, address=address))
    return tuple(found)


def examine_start(
    node: str, *, excess: str, blocked: str, blas: str | None, allow_sleep: bool, is_open: bool
) -> Iterator[Issue]:
    """Issues that stay until the node is started anew.

    `excess`: why --memory is too much. `blocked`: the program that a firewall blocks. `blas`: if the CPU computes with
    the reference BLAS, the path of a quicker one, or empty if there is none. `is_open`: --open-api without keys.
    """
    if excess:
        yield Code.MEMORY_LIMIT.issue(node=node, excess=excess)
    if blocked:
        yield Code.FIREWALL.issue(node=node, program=blocked)
    if blas is not None:
        install = "" if blas else "`apt install libblis4-pthread`, then "
        library = blas or "/usr/lib/$(uname -m)-linux-gnu/blis-pthread/libblas.so.3"
        yield Code.SLOW_BLAS.issue(node=node, install=install, library=library)
    if allow_sleep and platform.system() == "Darwin":
        yield Code.MAY_SLEEP.issue(node=node)
    if is_open:
        yield Code.OPEN_API.issue(node=node)


def examine_terminal(programs: Path) -> Iterator[Issue]:
    """Issues of the shell in which this program was started. `programs`: the directory of Pippin's own."""
    found = nodes_on_path()
    others = [each for each in found if Path(each).resolve().parent != programs.resolve()]
    if others:
        yield which_node(found[0], "" if others[0] == found[0] else others[0])
    if platform.system() == "Darwin" and platform.machine() != "arm64":
        yield Code.ROSETTA.issue()


def _disk_issues(node: str, folders: Iterable[Path]) -> Iterator[Issue]:
    """One for each disk."""
    seen = set()
    for folder in folders:
        existing = next(each for each in (folder, *folder.parents) if each.exists())
        disk = existing.stat().st_dev
        free = shutil.disk_usage(existing).free
        if disk not in seen and free < LOW_DISK:
            yield Code.DISK_LOW.issue(node=node, folder=without_home(folder), free=format_bytes(free))
        seen.add(disk)


def without_home(folder: Path) -> str:
    """The path of a folder without the user's name, as others read it."""
    home = Path.home()
    return str(Path("~") / folder.relative_to(home)) if folder.is_relative_to(home) else str(folder)


def which_node(first: str, other: str) -> Issue:
    """Of two programs named `node` in the user's shell. `other`: the next one after Pippin's; empty: Pippin's is not first."""
    which = f"`node` is {first} in this shell, which is Node.js or another program."
    if other:
        which = f"`node` is Pippin's in this shell. Called as Node.js is called, it runs {other}."
    return Code.WHICH_NODE.issue(which=which)
