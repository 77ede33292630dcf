"""The way to Node.js, whose program is also called `node`: whether stdin has a program for it, and how to become it.

It is imported before anything else of Pippin, each time that a program of Node.js starts: so it imports little.
"""

import os
import select
import signal
import stat
import sys
from collections.abc import Sequence
from typing import NoReturn

EXIT_NO_NODEJS, EXIT_CANNOT_RUN = 64, 126
"""EX_USAGE of sysexits.h, which differs from that of other usage errors so that a build's log tells them apart; and what
a shell ends with.
"""
PROGRAM_S = 2.0
"""Seconds within which a program must begin to arrive by a pipe. Managers of services may keep a pipe that stays empty."""
_PASSED_ON = "PIPPIN_PASSED_ON"
"""Variable with the process and the program that it became last, if that may lead back here."""


def become_nodejs(args: Sequence[str]) -> NoReturn:
    """Run the next `node` on the PATH in place of this program, as if this one were not there."""
    found = other_node()
    if found is None:
        sys.stderr.write(
            f"node: this is Pippin's node, which can't run {args[0] if args else 'the program on stdin'!r}, and there is "
            "no Node.js on the PATH. Pippin's options: pippin node --help\n"
        )
        raise SystemExit(EXIT_NO_NODEJS)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python has both ignored, and a new program would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(found, ["node", *args], _environment(found))  # noqa: S606 - as a shell would
    except OSError as error:
        sys.stderr.write(f"node: {found} can't be run: {error.strerror}\n")
        raise SystemExit(EXIT_CANNOT_RUN) from None


def nodes_on_path() -> list[str]:
    """The programs named `node` on the PATH; a shell starts the first one."""
    paths = (f"{folder or '.'}/node" for folder in os.environ.get("PATH", os.defpath).split(os.pathsep))
    return [path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)]  # noqa: PTH113


def other_node() -> str | None:
    """The next program named `node` on the PATH, after this one and those that have led here."""
    left = nodes_on_path()
    process, _, last = os.environ.get(_PASSED_ON, "").partition(":")
    if process == str(os.getpid()) and last in left:
        left = left[left.index(last) + 1 :]
    me = os.path.realpath(sys.argv[0])
    return next((program for program in left if os.path.realpath(program) != me), None)


def has_program_on_stdin() -> bool:
    """Whether stdin is a file with content, or a pipe into which something is written.

    It is none if it is a terminal, /dev/null or closed, as nohup and managers of services have it.
    """
    try:
        found = os.fstat(0)
    except OSError:
        return False
    if stat.S_ISREG(found.st_mode):
        return found.st_size > os.lseek(0, 0, os.SEEK_CUR)
    if not (stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode)):
        return False
    import fcntl  # noqa: PLC0415 - few command lines lead here
    import termios  # noqa: PLC0415

    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.poll(PROGRAM_S * 1000)
    return any(fcntl.ioctl(0, termios.FIONREAD, bytes(4)))  # the number of bytes there; at the end of a pipe, 0


def _environment(program: str) -> dict[str, str]:
    """This process's environment, as it was before Python started."""
    environment = dict(os.environ)
    environment.pop(_PASSED_ON, None)
    with open(program, "rb") as file:  # noqa: PTH123
        is_script = file.read(2) == b"#!"
    # A shim may choose Pippin's node again: a script of pyenv, or a link to a manager of versions.
    if is_script or os.path.basename(os.path.realpath(program)) != "node":  # noqa: PTH119
        environment[_PASSED_ON] = f"{os.getpid()}:{program}"
    if sys.flags.utf8_mode and "PYTHONUTF8" not in environment:
        environment.pop("LC_CTYPE", None)  # Python sets it where the language has no such locale (PEP 538)
    return environment
