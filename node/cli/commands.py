"""The commands of `cluster`. Each is told once: what it takes, what it asks a node over HTTP, and what it prints."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import click

from node import __version__
from node.cli import answers, completion, models
from node.cli.arguments import FOLLOW, IMAGES, MODEL, NODE, SYSTEM, TIMEOUT, asks_node, json_option
from node.cli.chat import Chat
from node.cli.client import Api, Json, StatusFailed
from node.cli.launch import PROGRAMS, choose, launch
from node.cli.pictures import picture_part, with_pictures
from node.cli.table import render
from node.cli.terminal import complain, printable, progress, without_controls
from node.cli.wait import SETTLED_S, Target, check_name, hub_lacks, in_memory, target_of, undrained, until_settled, wait
from node.core.rate import Rate
from node.core.units import format_bytes, format_download
from node.core.usage import Group, OneOf, option
from node.host.secret import new_secret

EXIT_NOT_READY, EXIT_INTERRUPTED = 4, 130


def _path(kind: str, name: str, command: str = "") -> str:
    return f"/cluster/{kind}/{quote(name, safe='')}{command}"


SECTIONS = {
    "Answers": ["chat", "launch", "run"],
    "Models": ["load", "models", "ps", "pull", "rm", "unload"],
    "The cluster": ["doctor", "drain", "logs", "status", "undrain", "wait"],
    "This machine": ["completion", "secret", "service"],
}


@click.group(
    "cluster",
    cls=Group,
    sections=SECTIONS,
    epilog="Exit codes: 0 ready or idle, 1 error, 2 usage, 3 no node here, 4 not ready or degraded.",
)
@click.version_option(__version__, message="pippin %(version)s")
def cluster() -> None:
    """Talk to the models of a Pippin cluster, show it, change it, or make a secret for it."""


# --- models -----------------------------------------------------------------------------------------------------------


@cluster.command
@click.argument(
    "model", required=False, help="id or short name (default: one that is loaded)", shell_complete=completion.models
)
@SYSTEM
@IMAGES
@asks_node
def chat(api: Api, model: str | None, system: str, images: Sequence[Path]) -> None:
    """Talk to a model; /help shows what else you can type."""
    import readline  # noqa: F401, PLC0415 - line editing and history for input(); other commands need none

    if model:
        check_name(api, model)
    model = model or answers.default_model(api)
    if sys.stdin.isatty():
        print(f"{printable(model)}   /help shows what you can type, Ctrl-D ends.")
    Chat(api, model, system, pictures=list(map(picture_part, images))).run()


@cluster.command
@MODEL
@click.argument("prompt", nargs=-1, help="the prompt, after what comes from a pipe")
@SYSTEM
@IMAGES
@option("--max-tokens", metavar="N", type=int, help="maximum length of the answer (default: the context)")
@option(
    "--temperature",
    metavar="T",
    type=float,
    help="0 for the likeliest answer (default: what the model's authors propose, else 0.7)",
)
@option("--verbose", is_flag=True, help="then print how many tokens it had, and how quick they were")
@json_option("print the node's JSON when the answer is whole")
@asks_node
def run(
    api: Api,
    model: str,
    prompt: tuple[str, ...],
    system: str,
    images: Sequence[Path],
    verbose: bool,
    as_json: bool,
    **more: Any,
) -> int:
    """Print a model's answer to one prompt."""
    messages: list[Json] = [{"role": "system", "content": system}] if system else []
    content = with_pictures(answers.whole_prompt(prompt), list(map(picture_part, images)))
    messages.append({"role": "user", "content": content})
    is_whole = answers.run(api, {"model": model, "messages": messages, **more}, as_json=as_json, verbose=verbose)
    return 0 if is_whole else EXIT_INTERRUPTED


@cluster.command("launch")
@click.argument("program", type=OneOf(PROGRAMS), metavar="PROGRAM", help=", ".join(PROGRAMS))
@click.argument("args", nargs=-1, type=click.UNPROCESSED, help="its arguments, after --")
@option(
    "--model",
    metavar="MODEL",
    shell_complete=completion.models,
    help="id, a short name, or how it begins (default: one that is loaded, if possible with room for PROGRAM's prompts)",
)
@option("--config", "prints", is_flag=True, help="start nothing, and print the settings as commands for a shell")
@asks_node
def launch_program(api: Api, program: str, args: tuple[str, ...], model: str | None, prints: bool) -> None:
    """Start a coding agent that uses this cluster."""
    launch(program, choose(api, model, program), args, prints=prints)


@cluster.command("models")
@option("--short-names", is_flag=True, help="show the short names of models on the hub instead")
@option(
    "--prove", metavar="MODEL", help="try on this machine whether a model may be cut: a folder, or an id of the hub"
)
@option(
    "--fits",
    metavar="[MODEL]",
    is_flag=False,
    flag_value="",
    help="show which Macs have room for a model, a folder or one of the hub (default: those with short names)",
)
@json_option("print the node's JSON unchanged")
@asks_node
def show_models(api: Api, short_names: bool, prove: str | None, fits: str | None, as_json: bool) -> int:
    """Show the models that nodes hold, and whether they fit."""
    if prove:
        return models.prove(prove)
    if fits is not None:
        return models.fits(fits, as_json=as_json)
    found = api.ask("GET", "/cluster/models")
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print(models.short_names(found) if short_names else models.held(found, api.status()))
    return 0


@cluster.command
@json_option("print the models of the node's status as JSON")
@asks_node
def ps(api: Api, as_json: bool) -> None:
    """Show the models that are loaded, and on which nodes."""
    status = api.status()
    loaded = [model for model in status["models"] if model["rings"] or model["state"] == "refused"]
    print(json.dumps(loaded, indent=2) if as_json else models.loaded(loaded, api.ask("GET", "/cluster/models"), status))


@cluster.command
@MODEL
@asks_node
def pull(api: Api, model: str) -> None:
    """Fetch a model to the disk of the node at --api."""
    tell, rate, size = progress(), Rate(), 0
    with closing(api.events(_path("models", model, "/pull"), {})) as events:  # to close it ends the fetch
        for event in events:
            if isinstance(event, str):
                continue
            model, size = event["model"], event["bytes"]
            tell(f"{model}   {format_download(event['done'], size, rate.at(event['done']))}")
    tell("")
    print(printable(f"{model}   {format_bytes(size)}"))


@cluster.command
@MODEL
@option("--yes", is_flag=True, help="also if other programs fetched some of it, without asking")
@asks_node
def rm(api: Api, model: str, yes: bool) -> None:
    """Delete a fetched model from the disk of the node at --api."""
    removed = models.remove(api, _path("models", model), yes=yes)
    if removed is None:
        print("Nothing is deleted.")
        return
    print(f"{printable(removed['model'])} is deleted: {format_bytes(removed['bytes'])} are free.")


@cluster.command
@MODEL
@option("--stages", metavar="N", type=int, help="spread it over at least N nodes")
@option("--context", metavar="N", type=int, help="maximum context in tokens")
@TIMEOUT
@asks_node
def load(api: Api, model: str, timeout: float, **how: int | None) -> int:
    """Load a model for good, and wait until it is ready."""
    # It may take long, as the head may first ask the hub for the model's description.
    loaded = str(api.ask("POST", _path("models", model, "/load"), how, timeout=120)["model"])
    target = Target(model=loaded)
    return _wait_until(api, timeout, target.missing, "loaded", f"{loaded} is loaded", target.refused)


@cluster.command
@MODEL
@TIMEOUT
@asks_node
def unload(api: Api, model: str, timeout: float) -> int:
    """Unload a model that answers no requests."""
    unloaded = str(api.ask("POST", _path("models", model, "/unload"))["model"])
    return _wait_until(api, timeout, lambda status: in_memory(status, unloaded), "unloaded", f"{unloaded} is unloaded")


# --- the cluster ------------------------------------------------------------------------------------------------------


@cluster.command
@json_option("print the node's JSON unchanged")
@option("--watch", "watched", is_flag=True, help="redraw each second until Ctrl-C")
@asks_node
def status(api: Api, as_json: bool, watched: bool) -> int:
    """Show nodes, models, links and warnings."""
    if watched:
        watch(api, as_json=as_json)
        return 0
    found = api.status()
    print(json.dumps(found, indent=2) if as_json else render(found, _columns()))
    return 0 if found["state"] in ("ready", "idle") else EXIT_NOT_READY


def _columns() -> int | None:
    """Of the terminal; None for a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def watch(api: Api, *, as_json: bool = False, pause: Callable[[float], None] = time.sleep) -> None:
    """Redraw each second until Ctrl-C, also if the node is unreachable; into a pipe, write one status after the other."""
    clear = "\x1b[H\x1b[2J" if sys.stdout.isatty() else ""
    with suppress(KeyboardInterrupt):
        while True:
            try:
                found = api.status()
                text = json.dumps(found) if as_json else render(found, _columns())
            except StatusFailed as error:
                text = json.dumps({"error": str(error)}) if as_json else without_controls(str(error))
            print(f"{clear}{text}", end="\n" if as_json or clear else "\n\n", flush=True)
            pause(1)


@cluster.command("wait")
@option("--ready", is_flag=True, expose_value=False, help="wait until all wanted models are ready (the default)")
@option("--nodes", metavar="N", type=int, default=1, help="wait for N nodes, too")
@option(
    "--model",
    metavar="MODEL",
    shell_complete=completion.models,
    help="wait for this model only: its id, a short name, or how it begins",
)
@TIMEOUT
@asks_node
def wait_for(api: Api, nodes: int, model: str | None, timeout: float) -> int:
    """Wait until the cluster is ready."""
    lacks = cache(partial(hub_lacks, api))  # asked once, not each time that the status is

    def target(status: Json) -> Target:
        return target_of(api, nodes, model, status, lacks) if model else Target(nodes)

    missing, refused = (lambda status: target(status).missing(status)), (lambda status: target(status).refused(status))
    return _wait_until(api, timeout, missing, "ready", "ready", refused, until_settled)


@cluster.command
@json_option("print the findings as JSON")
@option("--node", metavar="NODE", default="", shell_complete=completion.nodes, help="only findings about this node")
@asks_node
def doctor(api: Api, as_json: bool, node: str) -> int:
    """Show what is wrong, and what to do about it."""
    from node.cli.doctor import examine  # noqa: PLC0415 - it examines this terminal, too

    return examine(api, node, as_json=as_json)


@cluster.command
@click.argument(
    "node",
    default="",
    help="name, or id or its first characters (default: the node at --api)",
    shell_complete=completion.nodes,
)
@FOLLOW
@option("-n", "--lines", metavar="N", type=int, default=200, help="last lines (default: 200)")
@asks_node
def logs(api: Api, node: str, lines: int, follow: bool) -> None:
    """Show the log of a node."""
    # The node at `api` asks the other one: that may have any address, and the API key is not for it.
    query = {"lines": lines, **({"node": node} if node else {}), **({"follow": "true"} if follow else {})}
    for line in api.lines("GET", f"/cluster/logs?{urlencode(query)}"):
        print(without_controls(line), flush=True)


@cluster.command
@NODE
@TIMEOUT
@asks_node
def drain(api: Api, node: str, timeout: float) -> int:
    """Move a node's work to other nodes, and wait until it holds none."""
    drained = str(api.ask("POST", _path("nodes", node, "/drain"))["node"])
    return _wait_until(api, timeout, lambda status: undrained(status, drained), "drained", f"{node} is drained")


@cluster.command
@NODE
@asks_node
def undrain(api: Api, node: str) -> None:
    """Use a drained node again."""
    api.ask("POST", _path("nodes", node, "/undrain"))
    print(f"{node} is in use")


def _wait_until(
    api: Api,
    timeout: float,
    missing: Callable[[Json], str],
    aim: str,
    done: str,
    refused: Callable[[Json], str] = lambda _: "",
    patience: Callable[[Json], float] = lambda _: SETTLED_S,
) -> int:
    if left := wait(api, missing, timeout, progress(), refused, patience):
        complain(f"not {aim} after {timeout:g} s: {left}.")
        return EXIT_NOT_READY
    print(printable(done))
    return 0


# --- this machine -----------------------------------------------------------------------------------------------------


@cluster.group
def secret() -> None:
    """Make a secret for the nodes of a cluster."""


@secret.command
def new() -> None:
    """Print 128 random bits, for a file that only you can read."""
    print(new_secret())


@cluster.group
def service() -> None:
    """Start a node on this machine at boot."""


def _serve(action: str, **options: Any) -> int:
    from node.cli.service import act  # noqa: PLC0415 - it alone starts programs, whose modules take a while to import

    return act(action, **options)


@service.command
@option("--config", metavar="FILE", help="options of the node (default: the user's config.toml)")
@option("--user", metavar="NAME", help="run the node as this user (default: the one who called sudo)")
@option("--print", "prints", is_flag=True, help="change nothing, and print the file for the system")
def install(**options: Any) -> int:
    """Start a node now and at each boot (needs root)."""
    return _serve("install", **options)


@service.command
def uninstall() -> int:
    """Stop the node, now and at each boot (needs root)."""
    return _serve("uninstall")


@service.command("status")
def service_status() -> int:
    """Show whether the node runs."""
    return _serve("status")


@service.command("logs")
@FOLLOW
def service_logs(follow: bool) -> int:
    """Show the end of the node's log."""
    return _serve("logs", follow=follow)


@cluster.command("completion")
@click.argument("shell", type=OneOf(completion.SCRIPTS), metavar="SHELL", help=", ".join(completion.SCRIPTS))
def print_completion(shell: str) -> None:
    """Print the completion of commands, models and nodes for a shell."""
    print(completion.SCRIPTS[shell], end="")


@cluster.command(hidden=True)
@click.argument("words", nargs=-1)
def complete(words: tuple[str, ...]) -> None:
    """What the shells call."""
    print(*map(printable, completion.candidates(cluster, words)), sep="\n")
