"""Responses that are made while nobody waits for them."""

import asyncio
import logging
from contextlib import ExitStack

from api.backend import Backend
from api.drain import Drain
from api.responses.turn import Turn
from node.core.errors import PippinError, told

log = logging.getLogger(__name__)


class Background:
    """Each runs in a task of its own until it has ended or is cancelled; a node that stops waits for them."""

    def __init__(self, backend: Backend, drain: Drain) -> None:
        self._backend = backend
        self._drain = drain
        self._running: dict[str, tuple[Turn, asyncio.Task[None]]] = {}

    def start(self, turn: Turn, opening: asyncio.Task[None]) -> None:
        """`opening` makes the turn ready to be run."""
        response_id = turn.output.id
        under_way = ExitStack()
        under_way.enter_context(self._drain.under_way())
        task = asyncio.create_task(self._run(turn, opening), name=f"response {response_id}")
        self._running[response_id] = turn, task

        # Not a part of the task: one that is cancelled before its first step does not run at all.
        def end(_: asyncio.Task[None]) -> None:
            opening.cancel()
            turn.cancel()
            del self._running[response_id]
            under_way.close()

        task.add_done_callback(end)

    def find(self, response_id: str) -> Turn | None:
        """One that is still being made."""
        turn, _ = self._running.get(response_id, (None, None))
        return turn

    async def cancel(self, response_id: str) -> None:
        """Its place is free when this returns; nothing happens to one that is not running."""
        _, task = self._running.get(response_id, (None, None))
        if task:
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> None:
        for response_id in list(self._running):
            await self.cancel(response_id)

    async def _run(self, turn: Turn, opening: asyncio.Task[None]) -> None:
        """A task's root: whatever goes wrong becomes the response's error."""
        try:
            await opening
            await turn.run(self._backend)
        except Exception as error:
            if not isinstance(error, PippinError):
                log.exception("response %s failed", turn.output.id)
            turn.fail(told(error))
