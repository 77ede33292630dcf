"""How a driver has the tower compute the embeddings of pictures for the prompts that are about to run."""

import asyncio
import logging
from collections.abc import Callable

from node.core.errors import DeviceFailed, PippinError, as_pippin_error
from node.engine.compute import Compute
from node.engine.runner import Runner
from node.ring.admission import Admission
from node.ring.session import Slot

log = logging.getLogger(__name__)


class Seeing:
    """A task for each prompt. Other sessions' steps run between two layers of the tower."""

    def __init__(self, compute: Compute, runner: Runner, admission: Admission, on_done: Callable[[], None]) -> None:
        """`on_done`: a prompt waits no longer."""
        self._compute = compute
        self._runner = runner
        self._admission = admission
        self._on_done = on_done
        self._tasks: dict[Slot, asyncio.Task[None]] = {}
        self._one = asyncio.Lock()
        """Working memory is set aside for one picture at a time."""

    def begin(self) -> None:
        """Begin with the prompts that have come to wait, and end with those that are gone."""
        for slot in [slot for slot in self._tasks if slot.gone]:
            self._tasks.pop(slot).cancel()
        for prefill in self._admission.prefills:
            slot = prefill.slots[0]
            if slot.is_blind and not slot.gone and slot not in self._tasks:
                self._tasks[slot] = asyncio.create_task(self._see(slot), name="pictures of a prompt")

    def end(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _see(self, slot: Slot) -> None:
        """Root of a task: any error fails the session, unless the device did: that ends the ring."""
        session = slot.session
        try:
            async with self._one:
                pieces = self._runner.see(session.request.pictures, session.request.prompt, slot.sent)
                slot.seen = await self._compute.run_pieces(pieces)
            slot.is_blind = False
            self._tasks.pop(slot, None)
        except DeviceFailed:
            return
        except Exception as error:
            if not isinstance(error, PippinError):
                log.exception("the pictures of a prompt could not be computed")
            self._admission.fail(session, as_pippin_error(error))
        self._on_done()
