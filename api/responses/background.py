"""Background responses, which are generated while no client waits for them."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from aiohttp import web

from api.chat.env import Env
from api.chat.generation import run_all
from api.http.in_flight import RequestsInFlight
from api.http.limits import MAX_BACKGROUND, MAX_BACKGROUND_BYTES, MAX_BACKGROUND_S
from api.responses.turn import Turn
from node.core.errors import Overloaded, PippinError, as_pippin_error

log = logging.getLogger(__name__)


class Background:
    """Runs each background response in a task, until it has ended or is cancelled. A stopping node waits for them."""

    def __init__(self, env: Env, in_flight: RequestsInFlight) -> None:
        self._env = env
        self._in_flight = in_flight
        self._places = Counter[str]()
        """Places that each client has, and the bytes of the requests there."""
        self._bytes = Counter[str]()
        self._running: dict[str, tuple[Turn, asyncio.Task[None]]] = {}

    @contextmanager
    def place(self, turn: Turn) -> Iterator[None]:
        """Reserve a place for a response. Raises Overloaded if too many are taken, or half of them by its client."""
        client, size = turn.client, turn.conversation_bytes
        for whose, places, held, share in (
            ("", self._places.total(), self._bytes.total(), 1),
            (" of yours", self._places[client], self._bytes[client], 2),
        ):
            if places >= MAX_BACKGROUND // share or (places and held + size > MAX_BACKGROUND_BYTES // share):
                raise Overloaded(
                    f"{places} background responses{whose}, to requests of {held:,} bytes, are already in flight.",
                    hint="Try again when some of them are done.",
                )
        self._places[client] += 1
        self._bytes[client] += size
        try:
            yield
        finally:
            self._places -= Counter((client,))  # leaves only clients that have a place
            self._bytes -= Counter({client: size})

    def start(self, request: web.Request, turn: Turn, opening: asyncio.Task[None]) -> None:
        """Run a request's turn in the background once `opening` has prepared it. Raises Overloaded."""
        response_id = turn.output.id
        held = ExitStack()
        held.enter_context(self.place(turn))
        held.enter_context(self._env.bodies.account(request))
        held.enter_context(self._in_flight.counted())
        task = asyncio.create_task(self._run(turn, opening), name=f"response {response_id}")
        self._running[response_id] = turn, task

        # Not part of the task: a task that is cancelled before its first step does not run at all.
        def end(_: asyncio.Task[None]) -> None:
            opening.cancel()
            turn.cancel()
            del self._running[response_id]
            held.close()

        task.add_done_callback(end)

    def find(self, response_id: str) -> Turn | None:
        """The response's turn if it is still running, else None."""
        return self._running[response_id][0] if response_id in self._running else None

    async def cancel(self, response_id: str) -> None:
        """Cancel a response; its place is free when this returns. Does nothing if the response is not running."""
        if response_id in self._running:
            _, task = self._running[response_id]
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> None:
        for response_id in list(self._running):
            await self.cancel(response_id)

    async def _run(self, turn: Turn, opening: asyncio.Task[None]) -> None:
        """Root of a task: any exception becomes the response's error."""
        try:
            async with asyncio.timeout(MAX_BACKGROUND_S) as limit:
                await opening
                await run_all(self._env, turn.choices, turn)
        except Exception as error:
            failure = as_pippin_error(error)
            if limit.expired():
                failure = PippinError(f"The response took longer than {MAX_BACKGROUND_S:,.0f} s.")
            elif failure is not error:
                log.exception("response %s failed", turn.output.id)
            turn.fail(failure)
