"""Limits on the file descriptors of this process."""

import asyncio
import errno
import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

log = logging.getLogger(__name__)

MAX_DESCRIPTORS = 65_536
_MAX_ON_MACOS = 10_240
"""OPEN_MAX; some versions of macOS refuse a higher limit."""


@contextmanager
def fixed_limit() -> Iterator[None]:
    """Inside, imports cannot change the limits: mlx-lm lowers both, the hard limit for good, and fails if it may not.

    Enter it before another thread is started.
    """
    setrlimit = resource.setrlimit
    resource.setrlimit = lambda *_: None
    try:
        yield
    finally:
        resource.setrlimit = setrlimit


def raise_limit() -> None:
    """Raise the soft limit as far as the system allows: macOS starts with 256, and each connection needs one."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (MAX_DESCRIPTORS, _MAX_ON_MACOS):
        limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        if now == resource.RLIM_INFINITY or now >= limit:
            return
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
            return


class DescriptorShortage:
    """Exception handler of an event loop that logs a shortage of descriptors at most every 10 s.

    asyncio itself waits for a second before it accepts again, and reports each connection that waits.
    """

    def __init__(self) -> None:
        self._quiet_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif loop.time() >= self._quiet_until:
            self._quiet_until = loop.time() + 10.0
            log.warning("new connections have to wait: %s", error.strerror)
