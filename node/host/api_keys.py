"""API keys in a file: one a line. The node reads all that it accepts, `cluster` takes the first."""

import re
from pathlib import Path

_KEY = re.compile(r"[!-~]{1,512}")


def read_keys(path: Path) -> tuple[str, ...]:
    """Empty lines and those that begin with # are comments. Raises OSError, or ValueError, which shows no key."""
    lines = path.read_text("utf-8", "replace").splitlines()
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
        raise ValueError(f"{path} has no key; write one on a line of its own")
    return tuple(keys)


def parse_key(text: str) -> str:
    """An API key, or nothing. Raises ValueError for what cannot stand in a header."""
    if text and not _KEY.fullmatch(text):
        raise ValueError("an API key is up to 512 letters, digits and signs of ASCII, without blanks")
    return text
