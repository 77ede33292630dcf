"""The command line of `node`: its options, parsed and checked, as one frozen value."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from api.http.limits import MAX_BODY
from node import __version__
from node import option_values as values
from node.core.models import KV_BITS
from node.core.usage import Parser
from node.host.machine_name import machine_name
from node.members.membership import FAIL_AFTER_S
from node.settings import as_toml, given_in, misspelt, nothing_given, read_settings, value_of

DEFAULT_API_PORT = 52415
DEFAULT_MAX_BATCH = 64
DEFAULT_MAX_QUEUE = 256
DEFAULT_STEP_TIMEOUT_S = 60
DEFAULT_GRAMMAR_TIMEOUT_S = 2
DEVICES = ("cpu", "gpu")
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
OF_NODEJS = {"--icu-data-dir", "--interactive", "--log-all", "--logfile", "--no-addons", "--test-timeout"}
"""Options of Node.js that resemble options here."""


@dataclass(frozen=True, slots=True)
class Options:
    name: str
    """Shown to users; nodes identify each other by id."""
    cluster: str = "home"
    secret_file: Path | None = None
    """File of the cluster's secret; None: see node.host.secret."""
    models: tuple[str, ...] = ()
    """Models to load at start, in this order."""
    allow_models: tuple[str, ...] = ()
    """Patterns of models that requests may load; empty: all. Models that are loaded already are always allowed."""
    models_dirs: tuple[Path, ...] = ()
    """Directories searched for models before the hub; each exists."""
    api_port: int = DEFAULT_API_PORT
    """0: any free port."""
    ollama_port: int | None = None
    """A second port of the API, where Ollama's clients look for it; 0: any free port; None: there is none."""
    grpc_port: int = 0
    """0: any free port, so that several nodes can share a machine. Peers learn it by mDNS; only `--peer` needs it fixed."""
    host: str = ""
    """The only address to bind and advertise; empty: all."""
    interface: str = ""
    """The only interface to advertise; empty: all."""
    data_dir: Path | None = None
    """None: the first unused default, see node.host.identity."""
    memory: int | None = None
    """Bytes for models; None: see node.host.memory."""
    stages: int | None = None
    """Minimum number of nodes to spread each model over; None: the fastest placement."""
    peers: tuple[tuple[str, int], ...] = ()
    """Hosts and gRPC ports of nodes to join."""
    mdns: bool = True
    context: int | None = None
    """Maximum length of a sequence in tokens; None: the placement decides."""
    kv_bits: int = 0
    """Bits of a number of the KV; 0: the dtype of the activations."""
    drafts: tuple[tuple[str, str], ...] = ()
    """Models, and the draft models that guess their tokens."""
    aliases: tuple[tuple[str, str], ...] = ()
    """Names that requests may use for a model, and the model."""
    presets: tuple[tuple[str, tuple[tuple[str, float], ...]], ...] = ()
    """Models, and the sampling of their requests that do not say it."""
    max_sessions: int | None = None
    """Sequences that a ring reserves memory for; None: the placement decides."""
    max_rings: int | None = None
    """Maximum rings of a model; None: as many as fit."""
    keep_alive: float = 0.0
    """Seconds after which an idle model that nobody names is unloaded; 0: when its memory is needed."""
    max_batch: int = DEFAULT_MAX_BATCH
    """Maximum sequences that a ring computes together."""
    max_queue: int = DEFAULT_MAX_QUEUE
    """Maximum requests that wait for a ring; further ones are refused with 429."""
    max_body: int = MAX_BODY
    """Maximum bytes of an API request."""
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Accepted API keys; empty: requests need no key."""
    open_api: bool = False
    """Without keys, accept requests from public addresses, too."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may use the API, besides local ones; "*" allows any."""
    allow_hosts: tuple[str, ...] = ()
    """Host names of this node, in lower case, besides local ones."""
    fail_after: float = FAIL_AFTER_S
    """Seconds of silence after which a node counts as failed."""
    step_timeout: float = DEFAULT_STEP_TIMEOUT_S
    """Seconds after which a step of a ring counts as failed."""
    guesses: bool = True
    """Compute steps of guessed tokens while stages of a ring are idle."""
    grammar_timeout: float = DEFAULT_GRAMMAR_TIMEOUT_S
    """Seconds after which the compilation of a grammar is given up."""
    device: str = ""
    """What MLX computes on: cpu or gpu; empty: a GPU if there is one."""
    wire: bool = False
    """Keep the weights of models in wired memory (Metal)."""
    allow_sleep: bool = False
    """Let macOS put this machine to sleep while the node runs."""
    log_level: str = "info"
    log_file: Path | None = None
    """File of the log, which is rotated; None: stderr."""


def parse_options(argv: Sequence[str] | None = None) -> Options:
    """Parse `argv`, or this process's arguments, and what they leave out: the environment and the configuration file.

    Exits on --help, --version, --print-config and usage errors (2).
    """
    args = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    found, rest = parser.parse_known_args(args, nothing_given(parser))
    if rest:
        parser.refuse(rest[0], "a model is named with --model ID")
    if found.check:
        parser.error("--check comes first, and takes options of its own: see node --check --help")
    flags = given_in(found)
    file, is_to_print = flags.pop("config", None), flags.pop("print_config", False)
    try:
        settings = read_settings(parser, file)
        quiet = _parser(exit_on_error=False)
        lower = [value_of(quiet, name, setting) for name, setting in settings.items()]
        options = _options({dest: value for given in (*lower, flags) for dest, value in given.items()})
    except ValueError as error:
        parser.error(str(error))
    for warning in misspelt(parser):
        sys.stderr.write(f"node: {warning}\n")
    if is_to_print:
        sys.stdout.write(as_toml(parser, args, settings, Options(name=machine_name())) + "\n")
        raise SystemExit(0)
    return options


def _options(given: dict[str, Any]) -> Options:
    """Raises ValueError if some of the values exclude each other."""
    folders = [Path(model) for model in given.get("models", ()) if model.startswith("/")]
    models = [model.rpartition("/")[2] if model.startswith("/") else model for model in given.get("models", ())]
    drafts = given.get("drafts", ())
    if not models and any(not model for model, _ in drafts):
        raise ValueError("--draft ID needs --model; or name the model that it is for: --draft MODEL=ID")
    if given.get("host") and given.get("interface"):
        raise ValueError("--host is not allowed with --interface: see node --print-config")
    given |= {"models": models, "models_dirs": [*given.get("models_dirs", ()), *folders]}
    lists = {name: tuple(dict.fromkeys(value)) for name, value in given.items() if isinstance(value, list)}
    lists["drafts"] = tuple((model, draft) for of, draft in drafts for model in ([of] if of else models))
    return Options(**{"name": machine_name(), **given, **lists})


def knows(option: str) -> bool:
    """Whether an option is one of `node`, or is probably meant to be: misspelt, or of another program of this kind."""
    return option not in OF_NODEJS and _parser().knows(option)


def _parser(*, exit_on_error: bool = True) -> Parser:
    parser = Parser(
        prog="node",
        description="Start a node of a Pippin cluster. Nodes on one network find each other by themselves.",
        epilog="`cluster status` shows the cluster. The API is at http://127.0.0.1:52415/v1.",
        allow_abbrev=False,  # an abbreviation breaks when a later version adds an option
        exit_on_error=exit_on_error,
        meant=MEANT,
    )
    version = f"pippin {__version__} (a node of a cluster; not Node.js)"
    parser.add_argument("-v", "--version", action="version", version=version)
    _add_models(parser.add_argument_group("models"))
    _add_network(parser.add_argument_group("network"))
    _add_api(parser.add_argument_group("api"))
    _add_failure(parser.add_argument_group("failure"))
    _add_process(parser.add_argument_group("process"))
    return parser


def _add_models(group: argparse._ArgumentGroup) -> None:
    add, add_list = group.add_argument, partial(group.add_argument, action="append", default=[])
    add_list("--model", dest="models", metavar="ID", type=values.model, help="load this model; repeatable")
    add_list(
        "--allow-model",
        dest="allow_models",
        metavar="PATTERN",
        type=values.name,
        help="requests may load only models like 'mlx-community/*'; repeatable (default: any model)",
    )
    add_list(
        "--models-dir", dest="models_dirs", metavar="DIR", type=values.directory, help="folder of models; repeatable"
    )
    add(
        "--memory",
        metavar="BYTES",
        type=values.size,
        help="memory for models, like 12GB (default: what the machine can give)",
    )
    least = "spread each model over at least N nodes (default: whatever is fastest)"
    add("--stages", metavar="N", type=values.count(1, 1024), help=least)
    add(
        "--context",
        metavar="N",
        type=values.count(1),
        help="maximum context in tokens (default: what fits, up to 32768)",
    )
    bits = "keep the KV in so many bits, with less memory and less precision (default: those of the model)"
    add("--kv-bits", default=0, type=int, choices=KV_BITS, help=bits)
    draft = "small model that guesses tokens of MODEL, or of each --model, where it is spread over nodes; repeatable"
    add_list("--draft", dest="drafts", metavar="[MODEL=]ID", type=values.draft, help=draft)
    alias = "let requests name MODEL by NAME, too, at every node, like gpt-4o=qwen3-32b; repeatable"
    add_list("--alias", dest="aliases", metavar="NAME=MODEL", type=values.alias, help=alias)
    preset = "sample MODEL so where requests do not say it, at every node, like qwen3-8b=temperature=0.6,top_p=0.95; repeatable"
    add_list("--sampling", dest="presets", metavar="MODEL=NAME=VALUE,...", type=values.preset, help=preset)
    reserved = "sequences to reserve memory for (default: what fits, up to 8)"
    add("--max-sessions", metavar="N", type=values.count(1), help=reserved)
    add("--max-rings", metavar="N", type=values.count(1), help="maximum copies of a model (default: what fits)")
    idle = (
        "unload models after so long without a request, like 30m, if nobody names them (default: when memory is needed)"
    )
    add("--keep-alive", metavar="TIME", default=0.0, type=values.duration, help=idle)
    together = "maximum sequences computed together (default: %(default)s)"
    add("--max-batch", metavar="N", default=DEFAULT_MAX_BATCH, type=values.count(1), help=together)
    queued = "maximum requests in the queue of a ring (default: %(default)s)"
    guesses = "do not compute guessed tokens on stages that would be idle"
    add("--no-guesses", dest="guesses", action="store_false", help=guesses)
    add("--max-queue", metavar="N", default=DEFAULT_MAX_QUEUE, type=values.count(1), help=queued)


def _add_network(group: argparse._ArgumentGroup) -> None:
    add, add_list = group.add_argument, partial(group.add_argument, action="append", default=[])
    cluster = "nodes with the same cluster name join (default: home)"
    add("--cluster", metavar="NAME", default="home", type=values.cluster, help=cluster)
    shared = "file of the cluster's secret, the same on all its nodes; or set PIPPIN_SECRET"
    add("--secret-file", metavar="FILE", type=values.path, help=shared)
    add("--name", default=machine_name(), type=values.node_name, help="name shown to users (default: %(default)s)")
    peer = "address of another node's gRPC port; repeatable"
    add_list("--peer", dest="peers", metavar="HOST:PORT", type=values.peer, help=peer)
    no_mdns = "neither advertise this node nor search for others; use --peer"
    add("--no-mdns", dest="mdns", action="store_false", help=no_mdns)
    api_port = "port of the HTTP API; 0: any free port (default: %(default)s)"
    add("--api-port", metavar="PORT", default=DEFAULT_API_PORT, type=values.count(0, 65535), help=api_port)
    add(
        "--grpc-port",
        metavar="PORT",
        default=0,
        type=values.count(0, 65535),
        help="port for other nodes (default: any free port)",
    )
    only = group.add_mutually_exclusive_group()
    only.add_argument(
        "--host",
        metavar="ADDR",
        default=argparse.SUPPRESS,
        type=values.host,
        help="bind and advertise this address only",
    )
    only.add_argument(
        "--interface",
        metavar="NAME",
        default=argparse.SUPPRESS,
        type=values.interface,
        help="advertise this interface only",
    )


def _add_api(group: argparse._ArgumentGroup) -> None:
    add, add_list = group.add_argument, partial(group.add_argument, action="append", default=[])
    keys = "file of accepted API keys, one per line (default: requests need no key)"
    add("--api-key-file", dest="api_keys", metavar="FILE", default=(), type=values.keys, help=keys)
    add_list(
        "--cors-origin",
        dest="cors_origins",
        metavar="URL",
        type=values.origin,
        help="web pages of this origin may use the API, too, or of any origin with '*'; repeatable (default: pages of "
        "private networks, programs and extensions)",
    )
    add_list(
        "--allow-host",
        dest="allow_hosts",
        metavar="NAME",
        type=values.host_name,
        help="further host name by which requests may address this node; repeatable (default: addresses and local "
        "names)",
    )
    ollama = "serve the API on this port, too, such as 11434, where Ollama's clients look for it; 0: any free port"
    add("--ollama-port", metavar="PORT", type=values.count(0, 65535), help=f"{ollama} (default: none)")
    add("--open-api", action="store_true", help="without keys, accept requests from public addresses, too")
    add(
        "--max-body",
        metavar="BYTES",
        default=MAX_BODY,
        type=values.size,
        help="maximum size of a request (default: 8MB)",
    )
    grammar = "seconds that the grammar of a JSON schema may take to compile (default: %(default)s)"
    default: float = DEFAULT_GRAMMAR_TIMEOUT_S
    add("--grammar-timeout", metavar="S", default=default, type=values.seconds(0.1, 60), help=grammar)


def _add_failure(group: argparse._ArgumentGroup) -> None:
    silence = "seconds of silence after which a node counts as failed (default: %(default)s)"
    group.add_argument("--fail-after", metavar="S", default=FAIL_AFTER_S, type=values.seconds(1, 60), help=silence)
    step, default = "seconds that a step of a ring may take (default: %(default)s)", DEFAULT_STEP_TIMEOUT_S
    group.add_argument("--step-timeout", metavar="S", default=default, type=values.seconds(1, 3600), help=step)


def _add_process(group: argparse._ArgumentGroup) -> None:
    identity = "folder of this node's identity (default: ~/.pippin, or the next free one)"
    group.add_argument("--data-dir", metavar="DIR", type=values.path, help=identity)
    sleep = "let an idle Mac go to sleep while the node runs"
    group.add_argument("--allow-sleep", action="store_true", help=sleep)
    wire = "keep weights in wired memory, at the risk that macOS restarts: see docs/mac.md"
    group.add_argument("--wire", action="store_true", help=wire)
    device = "what MLX computes on (default: a GPU if there is one)"
    group.add_argument("--device", default="", choices=DEVICES, help=device)
    check = "instead of starting a node, test and measure this machine (node --check --help)"
    group.add_argument("--check", action="store_true", default=argparse.SUPPRESS, help=check)
    group.add_argument("--log-level", metavar="LEVEL", default="info", choices=LOG_LEVELS, help=", ".join(LOG_LEVELS))
    log_file = "write the log into this file, in parts of 10 MB of which five are kept (default: to stderr)"
    group.add_argument("--log-file", metavar="FILE", type=values.path, help=log_file)
    config = "file of options; or set PIPPIN_CONFIG (default: ~/.config/pippin/config.toml)"
    group.add_argument("--config", metavar="FILE", type=values.path, help=config)
    print_config = "instead of starting a node, print each option's value and where it comes from"
    group.add_argument("--print-config", action="store_true", help=print_config)
