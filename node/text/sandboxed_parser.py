"""Has the large JSON of models' files parsed in a sandbox, for the threads that read them."""

import asyncio
from functools import partial

from node.core.errors import ModelBroken
from node.core.fair_turns import FairTurns
from node.text.sandbox import Bounds, Sandbox, Sandboxes, SandboxFailed, SandboxServer

BOUNDS = Bounds(seconds=60.0, memory=2 * 2**30, reply=256 * 2**20, kept=64 * 2**20)
"""Limits of one file. The largest takes some 3 s and 1 GB."""
_MAX_WAITING = 64


class SandboxedParser:
    """The `in_sandbox` of a JsonParser. Create it inside the running event loop."""

    def __init__(self, server: SandboxServer) -> None:
        self._loop = asyncio.get_running_loop()
        start = partial(Sandbox.start, server, "node.model.json_parser:make_job", BOUNDS)
        self._sandboxes = Sandboxes(start, FairTurns("JSON to be parsed", 1, _MAX_WAITING))

    def __call__(self, request: bytes) -> bytes:
        """Have a request answered. Blocks, so it must not be called by the event loop's own thread.

        Raises ModelBroken if the sandbox fails, Overloaded, NotReady.
        """
        try:
            return asyncio.run_coroutine_threadsafe(self._sandboxes.ask(request, client=""), self._loop).result()
        except SandboxFailed as error:
            raise ModelBroken(f"Its JSON can't be parsed: {error}.") from error

    async def end(self) -> None:
        await self._sandboxes.close()
