"""Tries several connections with staggered starts: "happy eyeballs", RFC 8305."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

STAGGER_S = 0.1
"""Delay before the next attempt: the minimum of the RFC. In a local network an answer takes a tenth of it."""


async def happy_eyeballs(attempts: Sequence[Callable[[], Coroutine[Any, Any, bool]]], group: asyncio.TaskGroup) -> bool:
    """Whether an attempt succeeds; returns with the first one that does.

    They start in their order, STAGGER_S apart, or at once when one has failed. Started attempts are not cancelled: they
    finish in `group`, as their outcome tells something about their path.
    """
    running: set[asyncio.Task[bool]] = set()
    for attempt in attempts:
        running.add(group.create_task(attempt(), name="attempt"))
        if await _succeeded(running, STAGGER_S):
            return True
    while running:
        if await _succeeded(running, None):
            return True
    return False


async def _succeeded(running: set[asyncio.Task[bool]], timeout_s: float | None) -> bool:
    done, _ = await asyncio.wait(running, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    running -= done
    return any(task.result() for task in done)
