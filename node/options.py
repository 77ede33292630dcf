"""The command line of `node`: its options, parsed and checked, as one frozen value."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import click

from api.http.limits import MAX_BODY
from node import __version__
from node import option_values as values
from node.core.models import KV_BITS
from node.core.units import parse_bytes
from node.core.usage import Command, OneOf, Option, Parsed, near, option, run, source_of
from node.host.machine_name import machine_name
from node.members.membership import FAIL_AFTER_S
from node.settings import FILE_VARIABLE, as_toml, misspelt, read_file, variable

LOG_LEVELS = ("debug", "info", "warning", "error")

MEANT = {
    "-m": "--model",
    "-c": "--context",
    "--ctx": "--context",
    "--ctx-size": "--context",
    "--max-model-len": "--context",
    "--key": "--api-key-file",
    "--api-key": "--api-key-file",
    "--secret": "--secret-file",
    "--address": "--host",
    "--bind": "--host",
    "--listen": "--host",
    "--port": "--api-port",
    "--parallel": "--max-sessions",
    "--join": "--peer",
    "--verbose": "--log-level debug",
}
"""Names of options in other programs of this kind."""
OF_NODEJS = {
    "--icu-data-dir",
    "--interactive",
    "--log-all",
    "--logfile",
    "--no-addons",
    "--test-timeout",
    "--tls-keylog",
}
"""Options of Node.js that resemble options here."""


def _option(
    section: str, form: str, parse: Callable[[str], Any] | tuple[Any, ...] | None, about: str, default: Any = None
) -> Any:
    """A field of `Options`, and how it is given. `form`: the option, and what --help calls its value. `parse`: of a text; or
    the choices; or None for a switch. `about`: its help, in which `{}` is the default; it is repeatable if that says so.
    """
    flag, _, metavar = form.partition(" ")
    how: dict[str, Any] = {
        "section": section,
        "metavar": metavar or None,
        "help": about.format(default),
        "envvar": variable(flag),
    }
    if parse is None:
        default = flag.startswith("--no-")
        how |= {"type": values.Switch(on=not default), "is_flag": True}
    elif isinstance(parse, tuple):
        how |= {"type": OneOf(parse)}
    else:
        how |= {"type": Parsed(parse), "multiple": "repeatable" in about}
        default = () if how["multiple"] else default
    return field(default=default, repr=parse is not values.keys, metadata={"flag": flag, "how": how})


_models, _network, _api = partial(_option, "models"), partial(_option, "network"), partial(_option, "api")
_failure, _process = partial(_option, "failure"), partial(_option, "process")


@dataclass(frozen=True, slots=True)
class Options:
    """A value of None, 0 or an empty one is what the help of its option calls the default."""

    models: tuple[str, ...] = _models("--model ID", values.model, "load this model; repeatable")
    """They are loaded in this order."""
    allow_models: tuple[str, ...] = _models(
        "--allow-model PATTERN",
        values.name,
        "requests may load only models like 'mlx-community/*'; repeatable (default: any model)",
    )
    """Models that are loaded already are always allowed."""
    models_dirs: tuple[Path, ...] = _models("--models-dir DIR", values.directory, "folder of models; repeatable")
    """Each exists. They are searched before the hub."""
    memory: int | None = _models(
        "--memory BYTES", values.size, "memory for models, like 12GB (default: what the machine can give)"
    )
    stages: int | None = _models(
        "--stages N", values.count(1, 1024), "spread each model over at least N nodes (default: whatever is fastest)"
    )
    context: int | None = _models(
        "--context N", values.count(1), "maximum context in tokens (default: what fits, up to 32768)"
    )
    kv_bits: int = _models(
        "--kv-bits",
        KV_BITS,
        "keep the KV in so many bits, with less memory and less precision (default: those of the model)",
        0,
    )
    kv_disk: int | None = _models(
        "--kv-disk SIZE",
        parse_bytes,
        "keep KV of sessions on the disk, up to so many bytes, like 50GB; 0: none (default: a tenth of the free "
        "disk, up to 20GB)",
    )
    kv_copies: str = _models(
        "--kv-copies WHEN",
        ("wired", "always", "never"),
        "copy KV of sessions to the disk of another node while they grow: wired (not over Wi-Fi), always, never "
        "(default: {})",
        "wired",
    )
    drafts: tuple[tuple[str, str], ...] = _models(
        "--draft [MODEL=]ID",
        values.draft,
        "small model, or checkpoint with the MTP layer, that guesses tokens of MODEL, or of each --model, where it is spread over nodes; repeatable",
    )
    """Models, and the draft model of each."""
    aliases: tuple[tuple[str, str], ...] = _models(
        "--alias NAME=MODEL",
        values.alias,
        "let requests name MODEL by NAME, too, at every node, like gpt-4o=qwen3-32b; repeatable",
    )
    presets: tuple[tuple[str, tuple[tuple[str, float], ...]], ...] = _models(
        "--sampling MODEL=NAME=VALUE,...",
        values.preset,
        "sample MODEL so where requests do not say it, at every node, like qwen3-8b=temperature=0.6,top_p=0.95; "
        "repeatable",
    )
    max_sessions: int | None = _models(
        "--max-sessions N", values.count(1), "sequences to reserve memory for (default: what fits, up to 8)"
    )
    max_rings: int | None = _models("--max-rings N", values.count(1), "maximum copies of a model (default: what fits)")
    keep_alive: float = _models(
        "--keep-alive TIME",
        values.duration,
        "unload models after so long without a request, like 30m, if nobody names them (default: when memory is needed)",
        0.0,
    )
    """In seconds; 0: models are unloaded when memory is needed."""
    max_batch: int = _models("--max-batch N", values.count(1), "maximum sequences computed together (default: {})", 64)
    guesses: bool = _models("--no-guesses", None, "do not compute guessed tokens on stages that would be idle")
    max_queue: int = _models(
        "--max-queue N", values.count(1), "maximum requests in the queue of a ring (default: {})", 256
    )
    """Further ones are refused with 429."""

    cluster: str = _network(
        "--cluster NAME", values.cluster, "nodes with the same cluster name join (default: {})", "home"
    )
    secret_file: Path | None = _network(
        "--secret-file FILE",
        values.path,
        "file of the cluster's secret, the same on all its nodes; or set PIPPIN_SECRET",
    )
    name: str = _network("--name NAME", values.node_name, "name shown to users (default: this machine's name)", "")
    """Nodes identify each other by id."""
    peers: tuple[tuple[str, int], ...] = _network(
        "--peer HOST:PORT", values.peer, "address of another node's gRPC port; repeatable"
    )
    mdns: bool = _network("--no-mdns", None, "neither advertise this node nor search for others; use --peer")
    api_port: int = _network(
        "--api-port PORT", values.count(0, 65535), "port of the HTTP API; 0: any free port (default: {})", 52415
    )
    grpc_port: int = _network(
        "--grpc-port PORT", values.count(0, 65535), "port for other nodes (default: any free port)", 0
    )
    host: str = _network("--host ADDR", values.host, "bind and advertise this address only", "")
    interface: str = _network("--interface NAME", values.interface, "advertise this interface only", "")

    api_keys: tuple[str, ...] = _api(
        "--api-key-file FILE",
        values.keys,
        "file of accepted API keys, one per line (default: requests need no key)",
        (),
    )
    tls_cert: Path | None = _api(
        "--tls-cert FILE",
        values.path,
        "serve the API by TLS with this certificate (PEM, with its chain), which may be renewed while the node runs "
        "(default: without TLS)",
    )
    tls_key: Path | None = _api("--tls-key FILE", values.path, "private key of the certificate (PEM)")
    cors_origins: tuple[str, ...] = _api(
        "--cors-origin URL",
        values.origin,
        "web pages of this origin may use the API, too, or of any origin with '*'; repeatable (default: pages of private "
        "networks, programs and extensions)",
    )
    allow_hosts: tuple[str, ...] = _api(
        "--allow-host NAME",
        values.host_name,
        "further host name by which requests may address this node; repeatable (default: addresses, local names, and the "
        "machine's name in its tailnet)",
    )
    """The names are in lower case."""
    ollama_port: int | None = _api(
        "--ollama-port PORT",
        values.count(0, 65535),
        "serve the API on this port, too, such as 11434, where Ollama's clients look for it; 0: any free port (default: "
        "none)",
    )
    open_api: bool = _api("--open-api", None, "without keys, accept requests from public addresses, too")
    max_body: int = _api("--max-body BYTES", values.size, "maximum size of a request (default: 32MB)", MAX_BODY)
    grammar_timeout: float = _api(
        "--grammar-timeout S",
        values.seconds(0.1, 60),
        "seconds that the grammar of a JSON schema may take to compile (default: {})",
        2,
    )

    fail_after: float = _failure(
        "--fail-after S",
        values.seconds(1, 60),
        "seconds of silence after which a node counts as failed (default: {})",
        FAIL_AFTER_S,
    )
    step_timeout: float = _failure(
        "--step-timeout S", values.seconds(1, 3600), "seconds for which a ring may give no step back (default: {})", 60
    )

    data_dir: Path | None = _process(
        "--data-dir DIR", values.path, "folder of this node's identity (default: ~/.pippin, or the next free one)"
    )
    allow_sleep: bool = _process("--allow-sleep", None, "let an idle Mac go to sleep while the node runs")
    wire: bool = _process(
        "--wire", None, "keep weights in wired memory, at the risk that macOS restarts: see docs/mac.md"
    )
    unproven: bool = _process(
        "--unproven", None, "load models of architectures, too, of which no test proves that they may be cut"
    )
    device: str = _process("--device", ("cpu", "gpu"), "what MLX computes on (default: a GPU if there is one)", "")
    log_level: str = _process("--log-level LEVEL", LOG_LEVELS, ", ".join(LOG_LEVELS), "info")
    log_file: Path | None = _process(
        "--log-file FILE",
        values.path,
        "write the log into this file, in parts of 10 MB of which five are kept (default: to stderr)",
    )


def parse_options(argv: Sequence[str] | None = None) -> Options:
    """Parse `argv`, or this process's arguments, and what they leave out: the environment and the configuration file.

    Exits on --help, --version, --print-config and usage errors (2).
    """
    options: Options = run(command, argv, MEANT, "a model is named with --model ID")
    return options


def knows(flag: str) -> bool:
    """Whether an option is one of `node`, or is probably meant to be: misspelt, or of another program of this kind."""
    return flag not in OF_NODEJS and (flag in MEANT or bool(near(command, flag)))


@click.command(
    "node",
    cls=Command,
    params=[Option([each.metadata["flag"], each.name], **each.metadata["how"]) for each in fields(Options)],
    epilog="`cluster status` shows the cluster. The API is at http://127.0.0.1:52415/v1.",
)
@option(
    "--check",
    section="process",
    is_flag=True,
    help="instead of starting a node, test and measure this machine (node --check --help)",
)
@option(
    "--config",
    section="process",
    metavar="FILE",
    type=Parsed(values.path),
    envvar=FILE_VARIABLE,
    is_eager=True,
    expose_value=False,
    callback=read_file,
    help="file of options; or set PIPPIN_CONFIG (default: ~/.config/pippin/config.toml)",
)
@option(
    "--print-config",
    section="process",
    is_flag=True,
    help="instead of starting a node, print each option's value and where it comes from",
)
@click.version_option(__version__, "-v", "--version", message="pippin %(version)s (a node of a cluster; not Node.js)")
@click.pass_context
def command(context: click.Context, /, check: bool, print_config: bool, **given: Any) -> Options:
    """Start a node of a Pippin cluster. Nodes on one network find each other by themselves."""
    if check:
        raise click.UsageError("--check comes first, and takes options of its own: see node --check --help")
    options = _options(
        {
            param.name: given[param.name]
            for param in context.command.params
            if param.name in given and source_of(context, param)
        }
    )
    for warning in misspelt(context.command):
        sys.stderr.write(f"node: {warning}\n")
    if print_config:
        sys.stdout.write(as_toml(context, options) + "\n")
        context.exit()
    return options


def _options(given: dict[str, Any]) -> Options:
    """Raises UsageError if some of the values exclude each other."""
    folders = [Path(model) for model in given.get("models", ()) if model.startswith("/")]
    models = [model.rpartition("/")[2] if model.startswith("/") else model for model in given.get("models", ())]
    drafts = given.get("drafts", ())
    if not models and any(not model for model, _ in drafts):
        raise click.UsageError("--draft ID needs --model; or name the model that it is for: --draft MODEL=ID")
    if given.get("host") and given.get("interface"):
        raise click.UsageError("--host is not allowed with --interface: see node --print-config")
    if bool(given.get("tls_cert")) != bool(given.get("tls_key")):
        raise click.UsageError("--tls-cert and --tls-key need each other")
    given |= {"models": models, "models_dirs": [*given.get("models_dirs", ()), *folders]}
    given["drafts"] = [(model, draft) for of, draft in drafts for model in ([of] if of else models)]
    unique = {name: tuple(dict.fromkeys(value)) for name, value in given.items() if isinstance(value, list | tuple)}
    return Options(**{"name": machine_name(), **given, **unique})
