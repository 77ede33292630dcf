"""The `cluster` command: shows a cluster's status over HTTP, drains and undrains nodes, and makes secrets.

Exit codes: 0 ready (or idle: nothing is wanted, nothing is wrong), 1 error, 2 usage, 3 no node here, 4 not ready or
degraded. Ctrl-C ends `--watch` with 0, as that is the normal way to end it, and `wait` with 130.

It uses only a small part of the standard library: it is run in loops and prompts, so it must start quickly.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from node.cli.client import DEFAULT_API, Api, Json, NoNode, StatusFailed, parse_api
from node.cli.table import render
from node.cli.wait import Target, held, wait
from node.host.api_keys import parse_key, read_keys
from node.host.secret import new_secret

EXIT_READY, EXIT_ERROR, EXIT_NO_NODE, EXIT_NOT_READY, EXIT_INTERRUPTED = 0, 1, 3, 4, 130

_CLEAR = "\x1b[H\x1b[2J"


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        if "api" in args:
            args.api = args.api._replace(key=_key(args.api_key_file))
    except ValueError as error:
        parser.error(str(error))
    try:
        run: Callable[[argparse.Namespace], int] = args.run
        return run(args)
    except StatusFailed as error:
        print(f"cluster: {error}", file=sys.stderr)
        return EXIT_NO_NODE if isinstance(error, NoNode) else EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `cluster status | head -1`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_READY


def _key(file: str | None) -> str:
    """The API key: the first one in the file, or that in the environment.

    Arguments would show it to all users in `ps`.
    """
    try:
        return read_keys(Path(file))[0] if file else parse_key(os.environ.get("PIPPIN_API_KEY", ""))
    except OSError as error:
        raise ValueError(f"--api-key-file: {error}") from error


def _status(args: argparse.Namespace) -> int:
    if args.watch:
        return watch(args.api, as_json=args.json)
    status = args.api.status()
    print(json.dumps(status, indent=2) if args.json else render(status))
    return EXIT_READY if status["state"] in ("ready", "idle") else EXIT_NOT_READY


def watch(api: Api, *, as_json: bool = False, pause: Callable[[float], None] = time.sleep) -> int:
    """Redraw each second until Ctrl-C; into a pipe, write one status after the other.

    Goes on if the node is unreachable.
    """
    clear = _CLEAR if sys.stdout.isatty() else ""
    try:
        while True:
            try:
                status = api.status()
                text = json.dumps(status) if as_json else render(status)
            except StatusFailed as error:
                text = json.dumps({"error": str(error)}) if as_json else str(error)
            print(f"{clear}{text}", end="\n" if as_json or clear else "\n\n", flush=True)
            pause(1)
    except KeyboardInterrupt:
        return EXIT_READY


def _wait(args: argparse.Namespace) -> int:
    return _wait_until(args, Target(args.nodes, args.model).missing, "ready", "ready")


def _drain(args: argparse.Namespace) -> int:
    args.api.set_draining(args.node, draining=True)
    return _wait_until(args, lambda status: held(status, args.node), "drained", f"{args.node} is drained")


def _wait_until(args: argparse.Namespace, missing: Callable[[Json], str], aim: str, done: str) -> int:
    left = wait(args.api, missing, args.timeout, _progress())
    if not left:
        print(done)
        return EXIT_READY
    print(f"cluster: not {aim} after {args.timeout:g} s: {left}.", file=sys.stderr)
    return EXIT_NOT_READY


def _undrain(args: argparse.Namespace) -> int:
    args.api.set_draining(args.node, draining=False)
    print(f"{args.node} is in use")
    return EXIT_READY


def _new_secret(_: argparse.Namespace) -> int:
    print(new_secret())
    return EXIT_READY


def _progress() -> Callable[[str], None]:
    """Progress callback: a terminal gets one line, rewritten; a log gets a line per change. An empty text ends it."""
    if not sys.stderr.isatty():
        return lambda text: print(text, file=sys.stderr, flush=True) if text else None
    return lambda text: print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cluster",
        description="Show a Pippin cluster, wait for it, take a node out of use, or make a secret.",
        epilog="Exit codes: 0 ready or idle, 1 error, 2 usage, 3 no node here, 4 not ready or degraded.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    status = commands.add_parser("status", help="show nodes, models, links and warnings")
    status.add_argument("--json", action="store_true", help="print the node's JSON unchanged")
    status.add_argument("--watch", action="store_true", help="redraw each second until Ctrl-C")

    wait_for = commands.add_parser("wait", help="wait until the cluster is ready")
    wait_for.add_argument("--ready", action="store_true", help="wait until all wanted models are ready (the default)")
    wait_for.add_argument("--nodes", metavar="N", type=int, default=1, help="wait for N nodes, too")
    wait_for.add_argument("--model", metavar="ID", help="wait for this model only")
    wait_for.add_argument("--timeout", metavar="S", type=_seconds, default=600.0, help="seconds (default: %(default)g)")

    drain_it = commands.add_parser("drain", help="move a node's work to other nodes, and wait until it holds none")
    drain_it.add_argument("node", metavar="NODE", help="name or id of the node")
    drain_it.add_argument("--timeout", metavar="S", type=_seconds, default=600.0, help="seconds (default: %(default)g)")

    undrain = commands.add_parser("undrain", help="use a drained node again")
    undrain.add_argument("node", metavar="NODE", help="name or id of the node")

    secret = commands.add_parser("secret", help="make a secret for the nodes of a cluster")
    of_secret = secret.add_subparsers(metavar="COMMAND", required=True)
    new = of_secret.add_parser("new", help="print 128 random bits, for a file that only you can read")
    new.set_defaults(run=_new_secret)

    for command, run in ((status, _status), (wait_for, _wait), (drain_it, _drain), (undrain, _undrain)):
        command.set_defaults(run=run)
        command.add_argument(
            "--api", metavar="URL", type=_api, default=DEFAULT_API, help="address of any node (default: %(default)s)"
        )
        command.add_argument(
            "--api-key-file",
            metavar="FILE",
            help="file of API keys, of which the first is used (default: the key in PIPPIN_API_KEY)",
        )
    return parser


def _api(text: str) -> Api:
    try:
        return parse_api(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds >= 0:  # rejects "nan" as well, a deadline that would never pass
        raise ValueError(text)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
