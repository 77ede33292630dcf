"""The cluster's secret, read from a file, or from the environment for nodes started by a service manager."""

import math
import os
import secrets
import string
from collections.abc import MutableMapping
from pathlib import Path

from node.core.errors import PippinError
from node.host.private_file import exposed, repair

VARIABLE = "PIPPIN_SECRET"
MIN_BITS = 60
"""Minimum entropy in bits. Adverts allow offline guessing, at some 0.2 s per core and guess: words would be found."""
MAX_BYTES = 4096
"""Maximum bytes; a longer file was probably named by mistake."""


class SecretUnusable(PippinError):
    """The secret cannot be read, can be guessed, or can be read or changed by others.

    The node then does not start, as without a secret it would be open.
    """

    code = "secret_unusable"


_MAKE = "Make one with: (umask 077; cluster secret new > FILE)"
_CLASSES = (string.ascii_lowercase, string.ascii_uppercase, string.digits, string.punctuation + " ")


def new_secret() -> str:
    """Return 128 random bits in hex."""
    return secrets.token_hex(128 // 8)


def strength(secret: bytes) -> float:
    """Upper bound of the secret's entropy in bits, if its characters were drawn from the character classes that occur
    in it.

    A pair of adjacent characters counts once only, so that repeated text adds nothing.
    """
    text = secret.decode("latin-1")
    alphabet = sum(len(kind) for kind in _CLASSES if set(kind) & set(text))
    alphabet += 128 if any(ord(char) > 127 for char in text) else 0
    return len(set(zip("\0" + text, text, strict=False))) * math.log2(max(alphabet, 2))


def read_secret(file: Path | None, environment: MutableMapping[str, str] = os.environ) -> bytes | None:
    """Return the secret, stripped of white space, or None; removes the variable from the environment.

    `file` takes precedence over the variable. Raises SecretUnusable.
    """
    variable = environment.pop(VARIABLE, None)
    if file is None:
        return None if variable is None else _checked(os.fsencode(variable), VARIABLE)
    try:
        with file.open("rb") as opened:
            others = exposed(opened.fileno(), file)
            secret = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise SecretUnusable(f"The secret file {file} can't be read: {error.strerror}.") from error
    if others:
        raise SecretUnusable(f"{others}, the secret's file.", hint=f"{repair(file)}. {_MAKE}")
    return _checked(secret, str(file))


def _checked(secret: bytes, source: str) -> bytes:
    if len(secret) > MAX_BYTES:
        raise SecretUnusable(f"{source} has more than {MAX_BYTES:,} bytes, so it is not a secret.")
    secret = secret.strip()
    bits = strength(secret)
    if bits < MIN_BITS:
        raise SecretUnusable(
            f"The secret in {source} can be guessed: it has at most {bits:.0f} bits, and {MIN_BITS} are needed.",
            hint=_MAKE,
        )
    return secret
