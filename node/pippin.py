"""`pippin node` and `pippin cluster`: both programs under one name, as Node.js's program is also called `node`."""

import sys

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
        from node.cli.__main__ import main as cluster  # noqa: PLC0415

        sys.exit(cluster())
    elif program in ("-h", "--help"):
        sys.stdout.write(USAGE)
    elif program in ("-v", "--version"):
        sys.stdout.write(f"pippin {__version__}\n")
    else:
        sys.stderr.write(USAGE if not program else f"pippin: there is no {program!r}\n{USAGE}")
        sys.exit(EXIT_USAGE)
