"""The cluster's secret: from a file, or from the environment for those who start nodes by a service manager."""

import math
import os
import secrets
import stat
import string
from collections.abc import MutableMapping
from pathlib import Path

from node.core.errors import PippinError

VARIABLE = "PIPPIN_SECRET"
LEAST_BITS = 60
"""Whoever sees an advert can try secrets at home, at some 0.2 s of a core each: words are found, these are not."""
NEW_BITS = 128
LONGEST = 4096
"""Bytes. A longer one is some other file, named by mistake."""


class SecretUnusable(PippinError):
    """It can't be read, or can be guessed, or others can read it. The node does not start without it: that would be open."""

    code = "secret_unusable"


_MAKE = "Make one with: (umask 077; cluster secret new > FILE)"
_CLASSES = (string.ascii_lowercase, string.ascii_uppercase, string.digits, string.punctuation + " ")


def new_secret() -> str:
    """128 random bits."""
    return secrets.token_hex(NEW_BITS // 8)


def strength(secret: bytes) -> float:
    """Bits that a secret has at most, were its characters drawn from the classes of which it has any.

    One that follows the same character for the second time adds nothing: of what is written twice, the second time is free.
    """
    text = secret.decode("latin-1")
    alphabet = sum(len(kind) for kind in _CLASSES if set(kind) & set(text))
    alphabet += 128 if any(ord(char) > 127 for char in text) else 0
    return len(set(zip("\0" + text, text, strict=False))) * math.log2(max(alphabet, 2))


def read_secret(file: Path | None, environment: MutableMapping[str, str] = os.environ) -> bytes | None:
    """The secret without the white space around it; None if there is none. It is taken out of the environment.

    A file comes before the variable. Raises SecretUnusable.
    """
    variable = environment.pop(VARIABLE, None)
    if file is not None:
        return _checked(_read(file), str(file))
    return None if variable is None else _checked(os.fsencode(variable), VARIABLE)


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            secret = opened.read(LONGEST + 1)
    except OSError as error:
        raise SecretUnusable(f"The secret file {file} can't be read: {error.strerror}.") from error
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        raise SecretUnusable(
            f"Other users of this machine can read the secret file {file}.",
            hint=f"If nobody has read it: chmod 600 {file}. {_MAKE}",
        )
    return secret


def _checked(secret: bytes, source: str) -> bytes:
    if len(secret) > LONGEST:
        raise SecretUnusable(f"{source} has more than {LONGEST:,} bytes: that is no secret.")
    secret = secret.strip()
    bits = strength(secret)
    if bits < LEAST_BITS:
        raise SecretUnusable(
            f"The secret in {source} can be guessed: it has at most {bits:.0f} bits, and {LEAST_BITS} are needed.",
            hint=_MAKE,
        )
    return secret
