"""`pippin node` and `pippin cluster`: both programs under one name, as Node.js's program is also called `node`."""

import signal
import sys
from typing import NoReturn

from node import __version__

USAGE = """usage: pippin [-h] [-v] {node,cluster} ...

  pippin node      start a node of a Pippin cluster: as `node` does, but never Node.js
  pippin cluster   show a cluster, or change it: the same as `cluster`

`pippin node --help` and `pippin cluster --help` show the options.
"""
EXIT_USAGE = 2


def main() -> None:
    """Run the program that the first argument names, with the other arguments; exits as it does."""
    program = sys.argv[1] if len(sys.argv) > 1 else ""
    if program in ("node", "cluster"):
        del sys.argv[1]
    if program == "node":
        from node.__main__ import start  # noqa: PLC0415

        start()
    elif program == "cluster":
        cluster()
    elif program in ("-h", "--help"):
        sys.stdout.write(USAGE)
    elif program in ("-v", "--version"):
        sys.stdout.write(f"pippin {__version__}\n")
    else:
        sys.stderr.write(USAGE if not program else f"pippin: there is no {program!r}\n{USAGE}")
        sys.exit(EXIT_USAGE)


def cluster() -> NoReturn:
    """The program `cluster`. Ctrl-C raises an exception only in a command: imports, and Python's end, would tell it."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from node.cli.__main__ import main as run  # noqa: PLC0415

    code = run()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)
