"""What several commands of `cluster` take: a model, a node, and the address of the node that they ask."""

import functools
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from node.cli import completion
from node.cli.client import DEFAULT_API, Api, parse_api
from node.core.usage import Parsed, option
from node.host.api_keys import parse_key, read_keys

Asking = Callable[..., int | None]
"""Returns the exit code; None: 0."""


def asks_node(command: Asking) -> Asking:
    """A command with --api and --api-key-file, whose function gets `api`."""

    @option(
        "--api",
        metavar="URL",
        type=Parsed(parse_api),
        envvar="PIPPIN_HOST",
        default=DEFAULT_API,
        help=f"address of any node (default: PIPPIN_HOST, or {DEFAULT_API})",
    )
    @option(
        "--api-key-file",
        "key",
        metavar="FILE",
        callback=_key,
        help="file of API keys, of which the first is used (default: the key in PIPPIN_API_KEY)",
    )
    @option(
        "--tls-fingerprint",
        "fingerprint",
        metavar="SHA256",
        type=Parsed(_fingerprint),
        envvar="PIPPIN_TLS_FINGERPRINT",
        default="",
        help="trust only the certificate with this SHA-256, as the node's log shows it (default: the machine's authorities)",
    )
    @functools.wraps(command)
    def ask(api: Api, key: str, fingerprint: str, **options: Any) -> int | None:
        if fingerprint and api.scheme != "https":
            raise click.UsageError("--tls-fingerprint needs an --api that begins with https://")
        return command(api._replace(key=key, fingerprint=fingerprint), **options)

    return ask


def _key(_: click.Context, __: click.Parameter, file: str | None) -> str:
    """The API key: the first one in the file, or that in the environment.

    Arguments would show it to all users in `ps`.
    """
    try:
        return read_keys(Path(file))[0] if file else parse_key(os.environ.get("PIPPIN_API_KEY", ""))
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--api-key-file: {error}" if file else str(error)) from error


def _fingerprint(text: str) -> str:
    digits = text.replace(":", "").lower()
    if text and not re.fullmatch("[0-9a-f]{64}", digits):
        raise ValueError("a SHA-256 has 64 hexadecimal digits")
    return digits


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if (seconds := float(text)) >= 0:  # "nan" is not: a deadline that would never pass
            return seconds
    raise ValueError(f"{text!r} is no number of seconds")


MODEL = click.argument("model", help="id or short name", shell_complete=completion.models)
NODE = click.argument("node", help="name, or id or its first characters", shell_complete=completion.nodes)
IMAGES = option(
    "--image",
    "images",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path),
    help="a picture for the model (PNG, JPEG, WebP); repeatable",
)
SYSTEM = option("--system", metavar="TEXT", default="", help="tell the model who it is")
TIMEOUT = option("--timeout", metavar="S", type=Parsed(_seconds), default="600", help="seconds (default: 600)")
FOLLOW = option("-f", "--follow", is_flag=True, help="go on until Ctrl-C")


def json_option(about: str) -> Callable[[Asking], Asking]:
    return option("--json", "as_json", is_flag=True, help=about)
