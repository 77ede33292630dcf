"""The `cluster` command: each of its commands asks a node over HTTP; `secret` asks none.

Exit codes: 0 ready (or idle: nothing is wanted, nothing is wrong), 1 error, 2 usage, 3 no node here, 4 not ready or
degraded. Ctrl-C ends `--watch` with 0, as that is the normal way to end it, and `wait` and `run` with 130.

It uses only a small part of the standard library: it is run in loops and prompts, so it must start quickly.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from node.cli import answers, arguments, completion, models
from node.cli.chat import Chat
from node.cli.client import Api, Json, NoNode, StatusFailed
from node.cli.logs import logs
from node.cli.pull import pull
from node.cli.table import render
from node.cli.terminal import complain, printable, progress, without_controls
from node.cli.wait import Target, held, in_memory, model_id, wait
from node.core.units import format_bytes
from node.host.api_keys import parse_key, read_keys
from node.host.secret import new_secret

EXIT_READY, EXIT_ERROR, EXIT_NO_NODE, EXIT_NOT_READY, EXIT_INTERRUPTED = 0, 1, 3, 4, 130

_CLEAR = "\x1b[H\x1b[2J"


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments.parser()
    args = arguments.parse(parser, argv)
    try:
        if "api" in args:
            args.api = args.api._replace(key=_key(args.api_key_file))
    except ValueError as error:
        parser.error(str(error))
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return _COMMANDS[args.command](args)
    except StatusFailed as error:
        complain(str(error))
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


def _chat(args: argparse.Namespace) -> int:
    import readline  # noqa: F401, PLC0415 - line editing and history for input(); other commands need none

    model = args.model or answers.default_model(args.api)
    if sys.stdin.isatty():
        print(f"{printable(model)}   /help shows what you can type, Ctrl-D ends.")
    Chat(args.api, model, args.system).run()
    return EXIT_READY


def _run(args: argparse.Namespace) -> int:
    messages = [{"role": "system", "content": args.system}] if args.system else []
    messages += [{"role": "user", "content": answers.whole_prompt(args.prompt)}]
    more = {"max_tokens": args.max_tokens, "temperature": args.temperature}
    body = {"model": args.model, "messages": messages, **more}
    is_whole = answers.run(args.api, body, as_json=args.json, verbose=args.verbose)
    return EXIT_READY if is_whole else EXIT_INTERRUPTED


def _models(args: argparse.Namespace) -> int:
    found = args.api.models()
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        print(models.short_names(found) if args.short_names else models.held(found, args.api.status()))
    return EXIT_READY


def _ps(args: argparse.Namespace) -> int:
    status = args.api.status()
    loaded = [model for model in status["models"] if model["rings"] or model["state"] == "refused"]
    print(json.dumps(loaded, indent=2) if args.json else models.loaded(loaded, args.api.models(), status))
    return EXIT_READY


def _load(args: argparse.Namespace) -> int:
    model = args.api.load(args.model, {"stages": args.stages, "context": args.context})
    return _wait_until(args, Target(model=model).missing, "loaded", f"{model} is loaded")


def _unload(args: argparse.Namespace) -> int:
    model = args.api.unload(args.model)
    return _wait_until(args, lambda status: in_memory(status, model), "unloaded", f"{model} is unloaded")


def _pull(args: argparse.Namespace) -> int:
    print(printable(pull(args.api, args.model)))
    return EXIT_READY


def _rm(args: argparse.Namespace) -> int:
    removed = args.api.remove(args.model)
    print(f"{printable(removed['model'])} is deleted: {format_bytes(removed['bytes'])} are free.")
    return EXIT_READY


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
                text = json.dumps({"error": str(error)}) if as_json else without_controls(str(error))
            print(f"{clear}{text}", end="\n" if as_json or clear else "\n\n", flush=True)
            pause(1)
    except KeyboardInterrupt:
        return EXIT_READY


def _wait(args: argparse.Namespace) -> int:
    def missing(status: Json) -> str:
        model = model_id(args.api, args.model, status) if args.model else None
        return Target(args.nodes, model).missing(status)

    return _wait_until(args, missing, "ready", "ready")


def _drain(args: argparse.Namespace) -> int:
    node = args.api.set_draining(args.node, draining=True)
    return _wait_until(args, lambda status: held(status, node), "drained", f"{args.node} is drained")


def _wait_until(args: argparse.Namespace, missing: Callable[[Json], str], aim: str, done: str) -> int:
    left = wait(args.api, missing, args.timeout, progress())
    if not left:
        print(printable(done))
        return EXIT_READY
    complain(f"not {aim} after {args.timeout:g} s: {left}.")
    return EXIT_NOT_READY


def _undrain(args: argparse.Namespace) -> int:
    args.api.set_draining(args.node, draining=False)
    print(f"{args.node} is in use")
    return EXIT_READY


def _completion(args: argparse.Namespace) -> int:
    print(completion.SCRIPTS[args.shell], end="")
    return EXIT_READY


def _complete(args: argparse.Namespace) -> int:
    commands = arguments.commands_of(arguments.parser())
    print(*map(printable, completion.candidates(commands, args.words, args.api)), sep="\n")
    return EXIT_READY


def _logs(args: argparse.Namespace) -> int:
    for line in logs(args.api, args.node, args.lines, follow=args.follow):
        print(without_controls(line), flush=True)
    return EXIT_READY


def _new_secret(_: argparse.Namespace) -> int:
    print(new_secret())
    return EXIT_READY


def _service(args: argparse.Namespace) -> int:
    from node.cli.service import run  # noqa: PLC0415 - it alone starts programs, whose modules take a while to import

    return run(args)


def _doctor(args: argparse.Namespace) -> int:
    from node.cli.doctor import run  # noqa: PLC0415 - it examines this terminal, too

    return run(args)


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "chat": _chat,
    "run": _run,
    "models": _models,
    "ps": _ps,
    "pull": _pull,
    "rm": _rm,
    "load": _load,
    "unload": _unload,
    "status": _status,
    "wait": _wait,
    "doctor": _doctor,
    "drain": _drain,
    "undrain": _undrain,
    "logs": _logs,
    "secret": _new_secret,
    "service": _service,
    "completion": _completion,
    "complete": _complete,
}


if __name__ == "__main__":
    sys.exit(main())
