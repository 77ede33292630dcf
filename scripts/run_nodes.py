"""Starts one node with the built-in model, or several on this machine that split it, and prints how to use them."""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # until there are nodes to stop: the imports take a while

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psutil

from node.cli.client import Api, StatusFailed
from node.cli.terminal import LogPace, printable
from node.cli.wait import ABSENT, with_reason
from node.core.usage import run
from node.host.api_keys import read_keys
from node.host.ports import is_served

BIN = Path(sys.executable).parent
API_PORT = 52415
BUILTIN = "pippin-demo"
REAL = Path(__file__).with_name("real_model.py")
SAMPLING = "temperature=0,frequency_penalty=0.3"
"""Of the real model. As its card proposes, it often babbles in its 4 bits, in stock mlx-lm, too. Without the penalty, and with 0.2 in a
long story, it goes on until the context is full.
"""
POLL_S = 0.2
LAST_LINES_S = 10.0
"""Most seconds until the last lines of a node that has ended are shown; a process that it left may hold its output open."""
OTHERS_PASS = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": ["-h", "--help"]}
OF_ONE_NODE = ("PIPPIN_LOG_FILE", "PIPPIN_INTERFACE", "PIPPIN_PEER", "PIPPIN_OLLAMA_PORT")
"""Variables that several nodes of one machine cannot share, like what the user's configuration file says of one node."""


@dataclass(frozen=True, slots=True)
class Started:
    """A node's process, and the name by which its lines and its end are told."""

    name: str
    process: subprocess.Popen[bytes]
    copier: threading.Thread | None = None
    """Copies its lines, if they are told by its name."""

    @property
    def runs(self) -> bool:
        return self.process.poll() is None


@click.command("scripts/run", epilog="Other options go to `node`.", context_settings=OTHERS_PASS, help=__doc__)
@click.option("--nodes", type=int, default=1, metavar="N", help="nodes on this machine (default: 1)")
@click.option("--real", is_flag=True, help="a real, small model instead, which is fetched once (93 MB)")
@click.option("--stages", type=int, metavar="N", help="nodes that share one copy of a model (default: all)")
@click.option("--host", metavar="ADDR", help="of the nodes (default: all addresses, of several: 127.0.0.1)")
@click.option("--api-port", type=int, default=API_PORT, metavar="PORT", help="of the first node; 0: any")
@click.option("--api-key-file", metavar="FILE", help="file of accepted API keys, one per line")
@click.pass_context
def main(
    context: click.Context,
    /,
    *,
    nodes: int,
    real: bool,
    stages: int | None,
    host: str | None,
    api_port: int,
    api_key_file: str | None,
) -> int:
    if nodes < 1:
        raise click.UsageError(f"--nodes {nodes}: at least one node is started")
    try:
        key = read_keys(Path(api_key_file))[0] if api_key_file else ""
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--api-key-file: {error}") from error
    shared = min(stages or nodes, nodes)
    host = host or ("127.0.0.1" if nodes > 1 else "")
    port = api_port or free_port()
    if is_served(host or "0.0.0.0", port):
        print(f"API port {port} is taken. Is a node running? Choose another port with --api-port.", file=sys.stderr)
        return 1
    model, question = (real_model(), "What is the capital of France?") if real else (BUILTIN, "Hello")
    asked = json.dumps({"model": Path(model).name, "messages": [{"role": "user", "content": question}]})
    guard = ["--api-key-file", str(api_key_file)] if key else []
    sampling = ["--sampling", f"{Path(model).name}={SAMPLING}"] if real else []
    common = ["--model", model, *sampling, *(["--host", host] if host else []), *guard, *context.args]
    with tempfile.TemporaryDirectory(prefix="pippin-") as directory:
        stopping = Stopping()
        stopping.pass_on_to(start(nodes, shared, port, common, Path(directory)))
        follow(stopping, Api("http", host or "127.0.0.1", port, key), shared, asked, guard)
        for node in stopping.nodes:
            if node.copier:
                node.copier.join(LAST_LINES_S)
        return 130 if stopping.killed else max(abs(node.process.wait()) for node in stopping.nodes)


def real_model() -> str:
    """The folder of SmolLM2-135M-Instruct, made if it is not there; its script says what it does meanwhile."""
    made = subprocess.run([sys.executable, str(REAL), "--quantized"], stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode:
        sys.exit(abs(made.returncode))
    return made.stdout.strip()


def free_port() -> int:
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])


class Stopping:
    """Passes Ctrl-C, SIGTERM and the end of the terminal on to the nodes: the first drains them, the second ends them,
    the third kills them.

    It raises nothing, so that no moment is a wrong one. What comes while the nodes are started is passed on afterwards.
    """

    def __init__(self) -> None:
        self.nodes: list[Started] = []
        self.asked = 0
        numbers = [signal.SIGINT, signal.SIGTERM]  # SIGINT also if a shell started this in the background
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
            numbers.append(signal.SIGHUP)
        for number in numbers:
            signal.signal(number, self._ask)

    @property
    def killed(self) -> bool:
        return self.asked > 2

    def pass_on_to(self, nodes: Sequence[Started]) -> None:
        """Pass on what comes, and what has come already, to these nodes."""
        self.nodes = list(nodes)
        if self.asked:
            self._pass_on()

    def _ask(self, *_: object) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # often sent twice, by the system and by the shell
        self.asked += 1
        self._pass_on()

    def _pass_on(self) -> None:
        for node in self.nodes:
            # A Python that has no handler yet ends by SIGTERM without a traceback, by SIGINT with one.
            node.process.send_signal(signal.SIGKILL if self.killed else signal.SIGTERM)


# --- the processes --------------------------------------------------------------------------------------------------


def start(count: int, stages: int, api_port: int, common: list[str], directory: Path) -> list[Started]:
    if count == 1:
        arguments = ["--api-port", str(api_port), *common]
        return [Started("the node", launch(arguments))]
    cluster = f"local-{os.getpid()}"
    environment = {name: value for name, value in os.environ.items() if name not in OF_ONE_NODE}
    environment["PIPPIN_CONFIG"] = os.devnull
    return [
        launch_named(
            f"node-{number}",
            [
                *("--name", f"node-{number}", "--cluster", cluster),
                *("--data-dir", str(directory / f"node-{number}")),
                *("--api-port", str(api_port if number == 1 else 0), "--grpc-port", "0"),
                *("--stages", str(stages), *common),
            ],
            environment,
        )
        for number in range(1, count + 1)
    ]


def launch(arguments: list[str], **streams: Any) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C, or the end of the terminal, reaches only this script, which passes it on once.
    return subprocess.Popen([str(BIN / "node"), *arguments], start_new_session=True, **streams)


def launch_named(name: str, arguments: list[str], environment: dict[str, str]) -> Started:
    """Start a node whose lines begin with its name."""
    process = launch(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
    copier = threading.Thread(target=copy_lines, args=(name, process), daemon=True)
    copier.start()
    return Started(name, process, copier)


def copy_lines(name: str, process: subprocess.Popen[bytes]) -> None:
    assert process.stdout
    for line in process.stdout:
        with contextlib.suppress(OSError):  # the terminal may be gone; the node must not wait for a reader all the same
            os.write(sys.stderr.fileno(), f"{name} | ".encode() + line)


# --- what is told ---------------------------------------------------------------------------------------------------


def follow(stopping: Stopping, api: Api, stages: int, asked: str, guard: list[str]) -> None:
    """Tell what the nodes wait for, then that they are ready, and which of them end. Return when all have ended."""
    running = stopping.nodes
    awaited = tell_awaited(running, api, stages, asked, guard)
    while running:
        if not stopping.asked:
            next(awaited, None)
        time.sleep(POLL_S)
        ended = [node for node in running if not node.runs]
        running = [node for node in running if node.runs]
        for node in ended if running and not stopping.asked else ():
            rest = ", ".join(node.name for node in running)
            tell(f"{node.name} has ended with exit code {node.process.returncode}. Still running: {rest}.")


def tell_awaited(nodes: Sequence[Started], api: Api, stages: int, asked: str, guard: list[str]) -> Iterator[None]:
    """Ask for the status each time that it is advanced, and end when the greeting is printed."""
    while not serves(nodes[0], api.port):  # another program may have taken the port just now
        yield
    pace = LogPace()
    while True:
        try:
            status = api.status(timeout=2)
            awaited = missing(status, len(nodes), stages)
        except StatusFailed as error:
            status, awaited = {}, str(error)
        if not awaited:
            print(greeting(status, api.port, asked, guard), flush=True)
            return
        if pace.takes(awaited):
            tell(f"waiting: {awaited}")
        yield


def tell(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


def serves(node: Started, port: int) -> bool:
    """Whether the node's own process listens at the port."""
    try:
        return any(
            listener.status == psutil.CONN_LISTEN and listener.laddr.port == port
            for listener in psutil.Process(node.process.pid).net_connections("tcp")
        )
    except psutil.Error:  # it has ended
        return False


def missing(status: dict[str, Any], count: int, stages: int) -> str:
    """What the `count` nodes of this script lack to be ready; empty if nothing.

    What other nodes of their cluster load is not waited for.
    """
    here = [node for node in status["nodes"] if node["state"] not in ABSENT]
    own = here if count > 1 else [node for node in here if node["id"] == status["self"]]
    if len(own) < count:
        return f"{len(own)} of {count} nodes are here"
    if not status["head"]:
        return "no head is elected yet"
    wanted = {model for node in own for model in node["preload"]}
    lacking = [
        f"{model['id']} is {model['state']}"
        for model in status["models"]
        if model["id"] in wanted and model["state"] != "ready"
    ]
    told = ("error",) if lacking else ("error", "loading")  # that of a model's nodes says nothing more
    lacking += [f"{node['name']} is {node['state']}" for node in own if node["state"] in told]
    if not lacking and any(len(ring["stages"]) < stages for model in status["models"] for ring in model["rings"]):
        lacking = [f"the model is not spread over {stages} nodes yet"]
    return with_reason(lacking, status)


def greeting(status: dict[str, Any], port: int, asked: str, guard: list[str]) -> str:
    """Return the text to print. `asked`: body of a request to try. `guard`: options of `cluster` that give it an API key, if the nodes need one."""
    names = {node["id"]: node["name"] for node in status["nodes"]}
    lines = ["", f"Pippin is ready at http://localhost:{port}/v1", ""]
    for model in status["models"]:
        for number, ring in enumerate(model["rings"], start=1):
            copy = f", ring {number}" if len(model["rings"]) > 1 else ""
            lines += [
                f"  {model['id']}{copy}: layers {stage['start']}-{stage['end'] - 1} on {names[stage['node']]}"
                for stage in ring["stages"]
            ]
    header = ' -H "Authorization: Bearer KEY"' if guard else ""
    lines += [
        "",
        "Try:",
        f"  http://localhost:{port}/ in a browser",
        f"  curl http://localhost:{port}/v1/chat/completions{header} -d '{asked}'",
    ]
    api = "" if port == API_PORT else f" --api http://localhost:{port}"
    lines += [" ".join([f"  {os.path.relpath(BIN)}/cluster status{api}", *guard]), "", "Ctrl-C stops it.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(main))
