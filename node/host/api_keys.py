"""Reads files of API keys, one key per line. A node accepts all of them; `cluster` uses the first."""

import re
from pathlib import Path

from node.host.private_file import exposed, repair


def read_keys(path: Path) -> tuple[str, ...]:
    """Read the keys of a file. Empty lines and lines that begin with # are ignored.

    Raises OSError, and ValueError, whose message shows no key, also for a file that other users can read or change.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        if others := exposed(file.fileno(), path):
            raise ValueError(f"{others}; {repair(path)}")
        lines = file.read().splitlines()
    keys: dict[str, None] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            keys[parse_key(text)] = None
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    if not keys:
        raise ValueError(f"{path} has no key; write each key on its own line")
    return tuple(keys)


def parse_key(text: str) -> str:
    """Return the text if it is an API key or empty. Raises ValueError for a key that cannot be sent in a header."""
    if text and not re.fullmatch(r"[!-~]{1,512}", text):
        raise ValueError("an API key has up to 512 printable ASCII characters and no spaces")
    return text
