"""The cluster's secret: from a file, or from the environment for those who start nodes by a service manager."""

import logging
import os
import stat
from collections.abc import MutableMapping
from pathlib import Path

from node.core.errors import PippinError

log = logging.getLogger(__name__)

VARIABLE = "PIPPIN_SECRET"
SHORTEST = 16
"""Bytes. Whoever sees an advert can try secrets at home, at some 0.2 s each: words are found, these are not."""
LONGEST = 4096
"""Bytes. A longer one is some other file, named by mistake."""


class SecretUnusable(PippinError):
    """It can't be read, or is too short to keep anybody out. The node does not start without it: that would be open."""

    code = "secret_unusable"


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
        log.warning("other users of this machine can read the secret: chmod 600 %s", file)
    return secret


def _checked(secret: bytes, source: str) -> bytes:
    if len(secret) > LONGEST:
        raise SecretUnusable(f"{source} has more than {LONGEST:,} bytes: that is no secret.")
    secret = secret.strip()
    if len(secret) < SHORTEST:
        raise SecretUnusable(
            f"The secret in {source} has {len(secret)} bytes; at least {SHORTEST} are needed.",
            hint="Make one with: openssl rand -hex 16",
        )
    return secret
