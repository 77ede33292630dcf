"""Detects command lines that are meant for Node.js, which is also named `node`, to explain the mix-up."""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

_FLAGS = {"-", "-c", "-e", "-i", "-p", "-r", "-pe", "--eval", "--import", "--print", "--require"}
_FLAGS |= {"--experimental-strip-types", "--inspect", "--inspect-brk", "--run", "--test", "--watch"}

_SCRIPT = re.compile(r".*\.[cm]?[jt]sx?", re.IGNORECASE)


def meant_for_nodejs(args: Iterable[str]) -> str | None:
    """The first argument that only Node.js understands: a script's name, or one of its flags.

    `-v` and `--version` are not included: both programs answer them, and the answer shows which program it is.
    """
    return next((arg for arg in args if arg.partition("=")[0] in _FLAGS or _SCRIPT.fullmatch(arg)), None)


def explanation(meant: str) -> str:
    """Message to the user, with the path of Node.js on this machine."""
    other = other_node()
    way = f"Node.js may be {other}" if other else "There is no other `node` on your PATH. Once Node.js is installed"
    return (
        f"node: this is Pippin's node, not Node.js; it can't run {meant!r}.\n"
        f"{way}: call it by its full path, or put its directory before\n"
        f"{Path(sys.argv[0]).absolute().parent} in PATH and start Pippin with `pippin node`.\n"
    )


def other_node() -> Path | None:
    """The first other program named `node` on the PATH."""
    me = Path(sys.argv[0]).resolve()
    return next((candidate for candidate in _programs() if candidate.resolve() != me), None)


def first_node() -> Path | None:
    """The program that a shell starts as `node`."""
    return next(_programs(), None)


def _programs() -> Iterator[Path]:
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        candidate = Path(directory or ".") / "node"
        if candidate.is_file() and os.access(candidate, os.X_OK):
            yield candidate
