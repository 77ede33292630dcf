"""Errors of a request that was translated to a chat name the parameters that its sender used."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from node.core.errors import PippinError


@contextmanager
def renamed_params(names: Sequence[tuple[str, str]]) -> Iterator[None]:
    """Rename chat's parameters in errors. `names`: patterns of chat's names, and the names of the same ones there."""
    try:
        yield
    except PippinError as error:
        for pattern, name in names:
            if error.param and re.search(pattern, error.param):
                renamed = re.sub(pattern, name, error.param)
                error.message = error.message.replace(f"'{error.param}'", f"'{renamed}'")
                error.param = renamed
        raise
