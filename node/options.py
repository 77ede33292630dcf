"""The command line of `node`: what may be asked of a node, checked, as one frozen value."""

import argparse
import importlib.metadata
import ipaddress
import re
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from node.cluster.membership import FAIL_AFTER_S
from node.core.addresses import host_in, split_host_port
from node.core.types import LONGEST_NAME
from node.core.units import parse_bytes
from node.host.api_keys import read_keys
from node.host.interfaces import can_bind, interface_names
from node.host.nodejs import explanation, meant_for_nodejs

DEFAULT_API_PORT = 52415
DEFAULT_MAX_BATCH = 64
DEFAULT_MAX_QUEUE = 256
DEFAULT_MAX_BODY = 8 * 2**20
"""The longest prompts of today's models are some 4 MB."""
DEFAULT_STEP_TIMEOUT_S = 60
DEFAULT_GRAMMAR_TIMEOUT_S = 2
LOG_LEVELS = ("debug", "info", "warning", "error")

EXIT_NOT_NODEJS = 64
"""EX_USAGE of sysexits.h: apart from our own usage errors, so that a build script's log tells them from each other."""


@dataclass(frozen=True, slots=True)
class Options:
    name: str
    """For people; nodes know each other by id."""
    cluster: str = "home"
    secret_file: Path | None = None
    """Holds the cluster's secret; None: see node.host.secret."""
    models: tuple[str, ...] = ()
    """To load at start, in this order."""
    allow_models: tuple[str, ...] = ()
    """Patterns of models that a request may have loaded, besides those that are; empty: all."""
    models_dirs: tuple[Path, ...] = ()
    """Where to look for models before the hub; each exists."""
    api_port: int = DEFAULT_API_PORT
    """0: any free one."""
    grpc_port: int = 0
    """0: any free one. Others learn it by mDNS, so only `--peer` needs it fixed; any free one lets several nodes share
    a machine."""
    host: str = ""
    """The only address to bind and advertise; empty: all."""
    interface: str = ""
    """The only interface to advertise; empty: all."""
    data_dir: Path | None = None
    """None: the first free one of the defaults, see node.host.identity."""
    memory: int | None = None
    """Bytes for models; None: see node.host.memory."""
    stages: int | None = None
    """Spread each model over so many nodes; None: as few as is fastest."""
    peers: tuple[tuple[str, int], ...] = ()
    """Hosts and gRPC ports of nodes to join."""
    mdns: bool = True
    context: int | None = None
    """Longest sequence in tokens; None: the placement decides."""
    max_sessions: int | None = None
    """Sequences for which a ring sets memory aside; None: the placement decides."""
    max_rings: int | None = None
    """Rings that a model may have; None: as many as the nodes have room for."""
    max_batch: int = DEFAULT_MAX_BATCH
    """Sequences that a ring steps together."""
    max_queue: int = DEFAULT_MAX_QUEUE
    """Requests that may wait for a ring; more are told to come back."""
    max_body: int = DEFAULT_MAX_BODY
    """Bytes of an API request."""
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Of which an API request has to bring one; empty: anybody may ask."""
    open_api: bool = False
    """Without keys, requests are taken also from addresses that are not private."""
    cors_origins: tuple[str, ...] = ()
    """Of pages that may use the API besides local ones; "*" stands for any."""
    allow_hosts: tuple[str, ...] = ()
    """Names of this node, in lower case, besides local ones."""
    fail_after: float = FAIL_AFTER_S
    """Seconds of silence after which a node counts as failed."""
    step_timeout: float = DEFAULT_STEP_TIMEOUT_S
    """Seconds after which a step that has not come round its ring is lost."""
    grammar_timeout: float = DEFAULT_GRAMMAR_TIMEOUT_S
    """Seconds after which a grammar that is being made is given up."""
    log_level: str = "info"


def parse_options(argv: Sequence[str] | None = None) -> Options:
    """Of `argv`, or of this process. Ends the process on --help, --version and mistakes (2), or JavaScript (64)."""
    args = list(sys.argv[1:] if argv is None else argv)
    _refuse_javascript(args[:1])
    parser = _parser()
    found, rest = parser.parse_known_args(args)
    _refuse_javascript(rest)
    if rest:
        parser.error(f"unknown argument: {rest[0]} (a model is named with --model ID)")
    return Options(
        name=found.name,
        cluster=found.cluster,
        secret_file=found.secret_file,
        models=tuple(dict.fromkeys(found.model)),
        allow_models=tuple(dict.fromkeys(found.allow_model)),
        models_dirs=tuple(dict.fromkeys(found.models_dir)),
        api_port=found.api_port,
        grpc_port=found.grpc_port,
        host=found.host or "",
        interface=found.interface or "",
        data_dir=found.data_dir,
        memory=found.memory,
        stages=found.stages,
        peers=tuple(dict.fromkeys(found.peer)),
        mdns=not found.no_mdns,
        context=found.context,
        max_sessions=found.max_sessions,
        max_rings=found.max_rings,
        max_batch=found.max_batch,
        max_queue=found.max_queue,
        max_body=found.max_body,
        api_keys=found.api_key_file,
        open_api=found.open_api,
        cors_origins=tuple(dict.fromkeys(found.cors_origin)),
        allow_hosts=tuple(dict.fromkeys(found.allow_host)),
        fail_after=found.fail_after,
        step_timeout=found.step_timeout,
        grammar_timeout=found.grammar_timeout,
        log_level=found.log_level,
    )


def _refuse_javascript(args: Sequence[str]) -> None:
    meant = meant_for_nodejs(args)
    if meant is not None:
        sys.stderr.write(explanation(meant))
        raise SystemExit(EXIT_NOT_NODEJS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="node",
        description="Start a node of a Pippin cluster. Nodes on one network find each other by themselves.",
        epilog="`cluster status` shows what became of it. The API is at http://127.0.0.1:52415/v1.",
        allow_abbrev=False,  # an abbreviation breaks when a later version adds an option
    )
    version = f"pippin {importlib.metadata.version('pippin')} (a node of a cluster; not Node.js)"
    parser.add_argument("-v", "--version", action="version", version=version)
    _add_models(parser.add_argument_group("models"))
    _add_network(parser.add_argument_group("network"))
    _add_api(parser.add_argument_group("api"))
    _add_failure(parser.add_argument_group("failure"))
    _add_process(parser.add_argument_group("process"))
    return parser


def _add_models(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--model", metavar="ID", action="append", default=[], type=_name, help="load this model; repeatable")
    add(
        "--allow-model",
        metavar="PATTERN",
        action="append",
        default=[],
        type=_name,
        help="requests may have only such models loaded, as 'mlx-community/*'; repeatable (default: any)",
    )
    add(
        "--models-dir",
        metavar="DIR",
        action="append",
        default=[],
        type=_directory,
        help="has model folders; repeatable",
    )
    add(
        "--memory", metavar="BYTES", type=_bytes, help="memory for models, as 12GB (default: what the machine can give)"
    )
    add(
        "--stages",
        metavar="N",
        type=_count(1, 1024),
        help="spread each model over at least N nodes (default: the fastest way)",
    )
    add("--context", metavar="N", type=_count(1), help="longest sequence in tokens (default: what fits, up to 32768)")
    add(
        "--max-sessions", metavar="N", type=_count(1), help="sequences to keep memory for (default: what fits, up to 8)"
    )
    add("--max-rings", metavar="N", type=_count(1), help="copies of a model at most (default: what fits)")
    add(
        "--max-batch",
        metavar="N",
        default=DEFAULT_MAX_BATCH,
        type=_count(1),
        help="sequences that step together (default: %(default)s)",
    )
    add(
        "--max-queue",
        metavar="N",
        default=DEFAULT_MAX_QUEUE,
        type=_count(1),
        help="requests that may wait (default: %(default)s)",
    )


def _add_network(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--cluster", metavar="NAME", default="home", type=_cluster, help="nodes of one name join (default: home)")
    add("--secret-file", metavar="FILE", type=_path, help="only nodes with the same secret join; or PIPPIN_SECRET")
    add("--name", default=_hostname(), type=_name, help="this node's name for people (default: %(default)s)")
    add("--peer", metavar="HOST:PORT", action="append", default=[], type=_peer, help="a node's gRPC port; repeatable")
    add("--no-mdns", action="store_true", help="neither announce this node nor look for others; use --peer")
    add(
        "--api-port", metavar="PORT", default=DEFAULT_API_PORT, type=_port, help="default: %(default)s; 0: any free one"
    )
    add("--grpc-port", metavar="PORT", default=0, type=_port, help="between nodes (default: any free one)")
    only = group.add_mutually_exclusive_group()
    only.add_argument("--host", metavar="ADDR", type=_host, help="bind and advertise only this address")
    only.add_argument("--interface", metavar="NAME", type=_interface, help="advertise only this interface")


def _add_api(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--api-key-file",
        metavar="FILE",
        default=(),
        type=_keys,
        help="has the keys of which a request needs one, each on a line (default: none is needed)",
    )
    add(
        "--cors-origin",
        metavar="URL",
        action="append",
        default=[],
        type=_origin,
        help="also pages of this origin may use the API, or of any with '*'; repeatable (default: those of private "
        "networks, programs and extensions)",
    )
    add(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        type=_host_name,
        help="requests may call this node by this name; repeatable (default: addresses and local names)",
    )
    add("--open-api", action="store_true", help="without keys, take requests from public addresses, too")
    add(
        "--max-body",
        metavar="BYTES",
        default=DEFAULT_MAX_BODY,
        type=_bytes,
        help="longest request (default: 8MB)",
    )
    add(
        "--grammar-timeout",
        metavar="S",
        default=DEFAULT_GRAMMAR_TIMEOUT_S,
        type=_seconds(0.1, 60),
        help="seconds that the grammar of a schema may take to be made (default: %(default)s)",
    )


def _add_failure(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--fail-after",
        metavar="S",
        default=FAIL_AFTER_S,
        type=_seconds(1, 60),
        help="seconds of silence that mean that a node is gone (default: %(default)s)",
    )
    add(
        "--step-timeout",
        metavar="S",
        default=DEFAULT_STEP_TIMEOUT_S,
        type=_seconds(1, 3600),
        help="seconds that a ring may take for a step (default: %(default)s)",
    )


def _add_process(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--data-dir", metavar="DIR", type=_path, help="this node's identity (default: ~/.pippin, or the next free one)")
    add("--log-level", metavar="LEVEL", default="info", choices=LOG_LEVELS, help=", ".join(LOG_LEVELS))


# --- values: each takes the text, and raises ArgumentTypeError with what is wrong and what would be right -----------


def _text(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise argparse.ArgumentTypeError("must not be empty or hold control characters")
    return text.strip()


def _name(text: str) -> str:
    """Other nodes refuse one that uses longer names."""
    if len(text) > LONGEST_NAME:
        raise argparse.ArgumentTypeError(f"has {len(text):,} characters; {LONGEST_NAME} are the most")
    return _text(text)


def _cluster(text: str) -> str:
    """A DNS label, since the head is found as <cluster>.local; DNS knows no upper case."""
    if not re.fullmatch(r"(?!-)[a-z0-9-]{1,63}(?<!-)", text.lower()):
        raise argparse.ArgumentTypeError(f"{text!r} must be up to 63 letters, digits and hyphens, as in home-2")
    return text.lower()


def _directory(text: str) -> Path:
    path = _path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {path}")
    return path


def _path(text: str) -> Path:
    return Path(_text(text)).expanduser().absolute()


def _bytes(text: str) -> int:
    try:
        amount = parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if amount == 0:
        raise argparse.ArgumentTypeError("must be more than nothing; write it like 12GB")
    return amount


def _keys(text: str) -> tuple[str, ...]:
    try:
        return read_keys(_path(text))
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _origin(text: str) -> str:
    """As browsers write it in the Origin header: lower case, without a path."""
    origin = text.lower().rstrip("/")
    if origin not in ("*", "null") and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+", origin):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no origin; write it like https://chat.example or app://obsidian.md"
        )
    return origin


def _host_name(text: str) -> str:
    if host_in(text) != text.lower():
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a host; write it like llm.example, without a port")
    return text.lower()


def _count(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    def count(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,12}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
        return int(text)

    return count


def _seconds(least: float, most: float) -> Callable[[str], float]:
    def seconds(text: str) -> float:
        if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) or not least <= float(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from {least:g} to {most:g}")
        return float(text)

    return seconds


def _port(text: str) -> int:
    return _count(0, 65535)(text)


def _host(text: str) -> str:
    try:
        address = ipaddress.ip_address("127.0.0.1" if text == "localhost" else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no IP address of this machine, as in 192.168.1.5") from error
    if address.is_unspecified:
        return ""  # 0.0.0.0 and :: mean all addresses, which is what no --host means
    if not can_bind(str(address)):
        raise argparse.ArgumentTypeError(f"this machine has no address {address}")
    return str(address)


def _interface(text: str) -> str:
    if text not in interface_names():
        raise argparse.ArgumentTypeError(f"there is no interface {text!r}; there are {', '.join(interface_names())}")
    return text


def _peer(text: str) -> tuple[str, int]:
    """host:port, 192.168.1.5:52416 or [fd00::5]:52416."""
    has_form = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/]+):[0-9]{1,5}", text)
    host, port = split_host_port(text) if has_form else ("", 0)
    if not 0 < port < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} must be HOST:PORT, the port being the other node's --grpc-port")
    try:
        return str(ipaddress.IPv6Address(host)) if text.startswith("[") else host, port
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{host!r} is no IPv6 address") from error


def _hostname() -> str:
    """Without its domain: "mini-1", not "mini-1.local"."""
    return socket.gethostname().partition(".")[0] or "node"
