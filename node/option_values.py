"""Values of the options of `node`, parsed and checked.

Each function takes the text, and raises ValueError (`keys` also OSError) with the mistake and an example of a valid value.
"""

import ipaddress
import re
from collections.abc import Callable
from pathlib import Path

import click

from node.core.addresses import parse_host, split_host_port
from node.core.generation import parse_sampling
from node.core.limits import MAX_NAME_CHARS
from node.core.units import parse_bytes
from node.host.api_keys import read_keys
from node.host.interfaces import can_bind, interface_names
from node.model.short_names import not_for_mlx


class Switch(click.types.BoolParamType):
    """`on`: what the option means when it is given, or true; the environment and the file may also say false."""

    def __init__(self, *, on: bool) -> None:
        self.on = on

    def convert(self, value: str | bool, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        given = self.str_to_bool(value)
        if given is None:
            self.fail(f"{value!r} must be true or false", param, ctx)
        return given is self.on


def nonempty(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("must not be empty or contain control characters")
    return text.strip()


def name(text: str) -> str:
    """Checked here, as other nodes refuse nodes with longer names."""
    if len(text) > MAX_NAME_CHARS:
        raise ValueError(f"has {len(text):,} characters; the maximum is {MAX_NAME_CHARS}")
    return nonempty(text)


def node_name(text: str) -> str:
    """A name that people type into a shell: without characters on which it acts."""
    found = name(text)
    if not re.fullmatch(r"\w[\w./:@+ -]*", found):
        raise ValueError(f"{text!r} must be letters, digits, blanks and ./:@+-_, like mini-1")
    return found


def model(text: str) -> str:
    """A name; or the folder of a model, as its absolute path. Names of llama.cpp's format are refused at once."""
    if not text.startswith(("/", "./", "../", "~")) and text not in (".", ".."):
        if instead := not_for_mlx(text):
            raise ValueError(f"{text!r} is no model for MLX. {instead}")
        return name(text)
    folder = path(text).resolve()
    if not (folder / "config.json").is_file():
        what = "has no config.json" if folder.is_dir() else "is no directory"
        raise ValueError(f"{folder} {what}; name a folder with config.json and model*.safetensors")
    return str(folder)


def draft(text: str) -> tuple[str, str]:
    """The model, empty if none is named, and its draft model."""
    model, equals, small = text.rpartition("=")
    return name(model) if equals else "", name(small)


def alias(text: str) -> tuple[str, str]:
    """The alias, and the model that it stands for."""
    given, equals, model = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not NAME=MODEL; write it like gpt-4o=qwen3-32b")
    return name(given), name(model)


def preset(text: str) -> tuple[str, tuple[tuple[str, float], ...]]:
    """The model, and the sampling of its requests that do not say it."""
    model, equals, given = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not MODEL=NAME=VALUE; write it like qwen3-8b=temperature=0.6")
    pairs = [[part.strip() for part in each.partition("=")] for each in given.split(",")]
    return name(model), tuple((option, parse_sampling(option, written)) for option, _, written in pairs)


def cluster(text: str) -> str:
    """Must be a DNS label, as the head is found as <cluster>.local. It is returned in lower case, like DNS names."""
    if not re.fullmatch(r"(?!-)[a-z0-9-]{1,63}(?<!-)", text.lower()):
        raise ValueError(f"{text!r} must be up to 63 letters, digits and hyphens, like home-2")
    return text.lower()


def directory(text: str) -> Path:
    found = path(text)
    if not found.is_dir():
        raise ValueError(f"there is no directory {found}")
    return found


def path(text: str) -> Path:
    try:
        return Path(nonempty(text)).expanduser().absolute()
    except RuntimeError as error:
        raise ValueError(f"there is no user {text.partition('/')[0][1:]}") from error


def size(text: str) -> int:
    amount = parse_bytes(text)
    if amount == 0:
        raise ValueError("must be more than 0 bytes; write it like 12GB")
    return amount


def keys(text: str) -> tuple[str, ...]:
    return read_keys(path(text))


def origin(text: str) -> str:
    """Returned as browsers write it in the Origin header: in lower case, without a path."""
    written = text.lower().rstrip("/")
    if written not in ("*", "null") and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+", written):
        raise ValueError(f"{text!r} is not an origin; write it like https://chat.example or app://obsidian.md")
    return written


def host_name(text: str) -> str:
    if parse_host(text) != text.lower():
        raise ValueError(f"{text!r} is not a host name; write it like llm.example, without a port")
    return text.lower()


def count(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,12}", text) or not least <= int(text) <= most:
            raise ValueError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return parse


def seconds(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) or not least <= float(text) <= most:
            raise ValueError(f"{text!r} is not a number of seconds from {least:g} to {most:g}")
        return float(text)

    return parse


def duration(text: str) -> float:
    """Seconds of "90s", "30m", "2h" or "1d", or of a number of them; 0: none."""
    match = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write it like 90s, 30m or 2h")
    return float(int(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}[match[2]])


def host(text: str) -> str:
    try:
        address = ipaddress.ip_address("127.0.0.1" if text == "localhost" else text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not an IP address of this machine, like 192.168.1.5") from error
    if address.is_unspecified:
        return ""  # 0.0.0.0 and :: mean all addresses, which is what no --host means
    if not can_bind(str(address)):
        raise ValueError(f"this machine has no address {address}")
    return str(address)


def interface(text: str) -> str:
    if text not in interface_names():
        raise ValueError(f"there is no interface {text!r}; there are {', '.join(interface_names())}")
    return text


def peer(text: str) -> tuple[str, int]:
    """Parse host:port, 192.168.1.5:52416, [fd00::5]:52416, or [fe80::1%en5]:52416 over the interface en5."""
    has_form = re.fullmatch(r"(\[[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?\]|[^\s:\[\]/%]+):[0-9]{1,5}", text)
    address, number = split_host_port(text) if has_form else ("", 0)
    if not 0 < number < 65536:
        raise ValueError(f"{text!r} must be HOST:PORT, where PORT is the --grpc-port of the other node")
    if not text.startswith("["):
        return address, number
    try:
        parsed = ipaddress.IPv6Address(address)
    except ValueError as error:
        raise ValueError(f"{address!r} is not an IPv6 address") from error
    if parsed.is_link_local and not parsed.scope_id:
        raise ValueError(f"{text!r} lacks this machine's interface; write it like [{address}%en5]:{number}")
    return str(parsed), number
