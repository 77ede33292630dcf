"""`node`: starts a node of a cluster; or Node.js, where it is called as Node.js is called.

Imports come after the handler of signals, but for modules that Python has loaded already, so that no Ctrl-C ends in a traceback.
"""

import os
import signal
import sys

EXIT_INTERRUPTED = 130


def main() -> None:
    """The program `node`. Its first argument decides which of the two is meant."""
    _end_on_signals()
    if _is_for_nodejs(sys.argv[1:]):
        from node.host.nodejs import become_nodejs  # noqa: PLC0415

        become_nodejs(sys.argv[1:])
    start()


def start() -> None:
    """`pippin node` and `python -m node`: never Node.js."""
    _end_on_signals()
    if sys.argv[1:2] == ["--check"]:
        from node.check.command import main as check  # noqa: PLC0415

        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.exit(check(sys.argv[2:]))
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)
    from node.start import main as run  # noqa: PLC0415

    sys.exit(run())


def _is_for_nodejs(args: list[str]) -> bool:
    """Whether they are a script with its arguments, begin with a flag that Pippin does not know, or come with a program."""
    from node.host.nodejs import has_program_on_stdin, other_node  # noqa: PLC0415

    if not args or args == ["--check"]:
        return has_program_on_stdin()
    flag = args[0].partition("=")[0]
    if flag in ("-v", "--version"):  # tools ask for it to learn which Node.js there is
        return other_node() is not None
    if flag == "--check":  # of Pippin it has options only, of Node.js a script
        return len(args) > 1 and not args[1].startswith("-")
    if not flag.startswith("--"):
        return flag not in ("-h", "-m")
    from node.options import knows  # noqa: PLC0415 - it takes a while, and most command lines of Node.js name a script

    return not knows(flag)


def _end_on_signals() -> None:
    """Have signals end this process until the node has handlers of its own."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _end)


def _end(*_: object) -> None:
    os.write(2, b"node: stopped before it had started.\n")
    os._exit(0)  # an exception would be told as ignored where an import is inside a callback or a finalizer


if __name__ == "__main__":
    start()
