"""Models that nobody uses are unloaded by the head."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from node.cluster.commands import Commands
from node.core.errors import ModelBusy, ModelNotFound, NotReady


@pytest.mark.parametrize("error", [ModelNotFound, ModelBusy, NotReady])
async def test_an_idle_model_that_cannot_be_unloaded_any_more_is_no_failure(error: type[Exception]) -> None:
    """While the nodes are told of the first one, the second may be unloaded by a user, or asked for."""
    asked: list[str] = []
    all_asked = asyncio.Event()

    def unload(model: str) -> None:
        asked.append(model)
        if asked == ["a", "b", "c"]:
            all_asked.set()
        if model == "b":
            raise error("Things have changed.")

    head: Any = SimpleNamespace(idle=lambda _: ["a", "b", "c"] if not asked else [], unload=unload)
    agent: Any = SimpleNamespace(alive=list)
    nothing: Any = None
    running = asyncio.create_task(Commands(agent, head, *[nothing] * 4).unload_idle(0.01))
    reached = asyncio.create_task(all_asked.wait())
    await asyncio.wait([running, reached], return_when=asyncio.FIRST_COMPLETED, timeout=10)
    assert reached.done()
    running.cancel()
    await asyncio.wait([running])
