"""The program `cluster`: a command, and how its errors are told.

Exit codes: 0 ready (or idle: nothing is wanted, nothing is wrong), 1 error, 2 usage, 3 no node here, 4 not ready or
degraded. Ctrl-C ends `--watch` with 0, as that is the normal way to end it, and `wait` and `run` with 130.

It uses click and a small part of the standard library: it is run in loops and prompts, so it must start quickly.
"""

import os
import signal
import sys
from collections.abc import Sequence

from node.cli.client import NoNode
from node.cli.commands import EXIT_INTERRUPTED, cluster
from node.cli.terminal import complain
from node.core.errors import PippinError
from node.core.usage import run

EXIT_ERROR, EXIT_NO_NODE = 1, 3


def main(argv: Sequence[str] | None = None, *, name: str = "cluster") -> int:
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return int(run(cluster, argv, name=name) or 0)
    except PippinError as error:
        complain(str(error))
        return EXIT_NO_NODE if isinstance(error, NoNode) else EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `cluster status | head -1`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
