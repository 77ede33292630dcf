"""The command line of `cluster`: its commands and their options."""

import argparse
import os
from collections.abc import Sequence

from node import __version__
from node.cli.client import DEFAULT_API, Api, parse_api
from node.cli.completion import SCRIPTS
from node.core.usage import Parser

API_VARIABLE = "PIPPIN_HOST"
NODE = "name, or id or its first characters"


def parse(parser: Parser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits with 2 if it is wrong."""
    args, rest = parser.parse_known_args(argv)
    # argparse takes the prompt for absent if an option stands between it and the model.
    if args.command == "run" and not args.prompt and not any(text.startswith("-") for text in rest):
        args.prompt, rest = rest, []
    if rest:
        unknown = next((text for text in rest if text.startswith("-")), rest[0])
        commands_of(parser).get(args.command, parser).refuse(unknown)  # which resembles options of this command only
    return args


def parser() -> Parser:
    """What it parses has `command`, its options and, unless the command asks no node, `api` without a key."""
    parser = Parser(
        prog="cluster",
        description="Talk to the models of a Pippin cluster, show it, change it, or make a secret for it.",
        epilog="Exit codes: 0 ready or idle, 1 error, 2 usage, 3 no node here, 4 not ready or degraded.",
    )
    parser.add_argument("--version", action="version", version=f"pippin {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_answers(commands)
    _add_models(commands)
    _add_cluster(commands)
    secret = commands.add_parser("secret", help="make a secret for the nodes of a cluster")
    of_secret = secret.add_subparsers(dest="secret", metavar="COMMAND", required=True)
    of_secret.add_parser("new", help="print 128 random bits, for a file that only you can read")
    _add_service(commands)
    _add_completion(commands)
    for name, command in commands.choices.items():
        if name not in ("secret", "service", "completion"):
            _add_api(command)
    return parser


def commands_of(parser: Parser) -> dict[str, Parser]:
    """The commands of `parser()` that are shown to people, by name."""
    (actions,) = (action for action in parser._actions if isinstance(action, Commands))  # noqa: SLF001
    return {name: command for name, command in actions.choices.items() if name != "complete"}


Commands = argparse._SubParsersAction  # noqa: SLF001 - argparse has no public name for it


def _add_answers(commands: "Commands[Parser]") -> None:
    chat = commands.add_parser("chat", help="talk to a model; /help shows what else you can type")
    chat.add_argument("model", metavar="MODEL", nargs="?", help="id or short name (default: one that is loaded)")
    _add_system(chat)

    run = commands.add_parser("run", help="print a model's answer to one prompt")
    _add_model(run)
    run.add_argument("prompt", metavar="PROMPT", nargs="*", help="the prompt, after what comes from a pipe")
    _add_system(run)
    run.add_argument("--max-tokens", metavar="N", type=int, help="maximum length of the answer (default: the context)")
    run.add_argument(
        "--temperature",
        metavar="T",
        type=float,
        help="0 for the likeliest answer (default: what the model's authors propose, else 0.7)",
    )
    run.add_argument(
        "--verbose", action="store_true", help="then print how many tokens it had, and how quick they were"
    )
    run.add_argument("--json", action="store_true", help="print the node's JSON when the answer is whole")


def _add_models(commands: "Commands[Parser]") -> None:
    models = commands.add_parser("models", help="show the models that nodes hold, and whether they fit")
    models.add_argument("--short-names", action="store_true", help="show the short names of models on the hub instead")
    models.add_argument("--json", action="store_true", help="print the node's JSON unchanged")

    ps = commands.add_parser("ps", help="show the models that are loaded, and on which nodes")
    ps.add_argument("--json", action="store_true", help="print the models of the node's status as JSON")

    pull = commands.add_parser("pull", help="fetch a model to the disk of the node at --api")
    _add_model(pull)

    rm = commands.add_parser("rm", help="delete a fetched model from the disk of the node at --api")
    _add_model(rm)

    load = commands.add_parser("load", help="load a model for good, and wait until it is ready")
    _add_model(load)
    load.add_argument("--stages", metavar="N", type=int, help="spread it over at least N nodes")
    load.add_argument("--context", metavar="N", type=int, help="maximum context in tokens")
    _add_timeout(load)

    unload = commands.add_parser("unload", help="unload a model that answers no requests")
    _add_model(unload)
    _add_timeout(unload)


def _add_cluster(commands: "Commands[Parser]") -> None:
    status = commands.add_parser("status", help="show nodes, models, links and warnings")
    status.add_argument("--json", action="store_true", help="print the node's JSON unchanged")
    status.add_argument("--watch", action="store_true", help="redraw each second until Ctrl-C")

    wait = commands.add_parser("wait", help="wait until the cluster is ready")
    wait.add_argument("--ready", action="store_true", help="wait until all wanted models are ready (the default)")
    wait.add_argument("--nodes", metavar="N", type=int, default=1, help="wait for N nodes, too")
    wait.add_argument(
        "--model", metavar="MODEL", help="wait for this model only: its id, a short name, or how it begins"
    )
    _add_timeout(wait)

    doctor = commands.add_parser("doctor", help="show what is wrong, and what to do about it")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.add_argument("--node", metavar="NODE", default="", help="only findings about this node")

    drain = commands.add_parser("drain", help="move a node's work to other nodes, and wait until it holds none")
    drain.add_argument("node", metavar="NODE", help=NODE)
    _add_timeout(drain)

    logs = commands.add_parser("logs", help="show the log of a node")
    logs.add_argument("node", metavar="NODE", nargs="?", default="", help=f"{NODE} (default: the node at --api)")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until Ctrl-C")
    logs.add_argument("-n", "--lines", metavar="N", type=int, default=200, help="last lines (default: %(default)s)")

    undrain = commands.add_parser("undrain", help="use a drained node again")
    undrain.add_argument("node", metavar="NODE", help=NODE)


def _add_service(commands: "Commands[Parser]") -> None:
    service = commands.add_parser("service", help="start a node on this machine at boot")
    of_service = service.add_subparsers(dest="service", metavar="COMMAND", required=True)
    install = of_service.add_parser("install", help="start a node now and at each boot (needs root)")
    install.add_argument("--config", metavar="FILE", help="options of the node (default: the user's config.toml)")
    install.add_argument("--user", metavar="NAME", help="run the node as this user (default: the one who called sudo)")
    install.add_argument("--print", action="store_true", help="change nothing, and print the file for the system")
    of_service.add_parser("uninstall", help="stop the node, now and at each boot (needs root)")
    of_service.add_parser("status", help="show whether the node runs")
    logs = of_service.add_parser("logs", help="show the end of the node's log")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until Ctrl-C")


def _add_completion(commands: "Commands[Parser]") -> None:
    completion = commands.add_parser(
        "completion", help="print the completion of commands, models and nodes for a shell"
    )
    completion.add_argument("shell", metavar="SHELL", choices=tuple(SCRIPTS), help=", ".join(SCRIPTS))
    complete = commands.add_parser("complete")  # what the shells call; without help it is not listed
    complete.add_argument("words", nargs="*")


def _add_model(command: Parser) -> None:
    command.add_argument("model", metavar="MODEL", help="id or short name")


def _add_system(command: Parser) -> None:
    command.add_argument("--system", metavar="TEXT", default="", help="tell the model who it is")


def _add_timeout(command: Parser) -> None:
    command.add_argument("--timeout", metavar="S", type=_seconds, default=600.0, help="seconds (default: %(default)g)")


def _add_api(command: Parser) -> None:
    where = f"address of any node (default: {API_VARIABLE}, or {DEFAULT_API})"
    command.add_argument("--api", metavar="URL", type=_api, default=_default_api(), help=where)
    command.add_argument(
        "--api-key-file",
        metavar="FILE",
        help="file of API keys, of which the first is used (default: the key in PIPPIN_API_KEY)",
    )


def _default_api() -> str:
    """Text, as argparse then reports a wrong one like an argument."""
    return os.environ.get(API_VARIABLE, "").strip() or DEFAULT_API


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
