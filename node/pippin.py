"""`pippin`: both programs under one name, as Node.js's program is also called `node`; and the program `cluster`.

What takes a while to import comes after the handler of Ctrl-C, which would else end in a traceback.
"""

import signal
import sys

from node import __version__

USAGE = """usage: pippin [-h] [-v] COMMAND ...

  pippin node      start a node of a Pippin cluster: as `node` does, but never Node.js
  pippin COMMAND   talk to a cluster, show it or change it: as `cluster COMMAND` does

  chat  launch  run                              answers
  load  models  ps  pull  rm  unload             models
  doctor  drain  logs  status  undrain  wait     the cluster
  completion  secret  service                    this machine

`pippin node --help` shows the options of a node, `pippin cluster --help` what the commands do.
"""
EXIT_USAGE = 2


def main() -> None:
    """Run the program or the command that the first argument names, with the other arguments; exits as it does."""
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
    elif not program:
        sys.stderr.write(USAGE)
        sys.exit(EXIT_USAGE)
    else:
        cluster("pippin")


def cluster(name: str = "cluster") -> None:
    """The program `cluster`. Ctrl-C raises an exception only in a command: imports, and Python's end, would tell it.

    `name`: what its usage errors call it. Exits.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from node.cli.__main__ import main as run  # noqa: PLC0415

    code = run(name=name)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)
