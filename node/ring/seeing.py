"""How a driver has the tower compute the embeddings of pictures, when their prompt comes to them."""

import asyncio
import logging
from collections.abc import Callable

from node.core.errors import DeviceFailed, PippinError, as_pippin_error
from node.engine.compute import Compute
from node.engine.runner import Runner
from node.ring.admission import Admission
from node.ring.flight import Step
from node.ring.prefill import STALL_S
from node.ring.session import Slot

log = logging.getLogger(__name__)


class Seeing:
    """Sees the next picture of a prompt, or some small ones, just before it needs them, and holds the embeddings until they are in a step:
    so all there is of pictures stays within the working memory that is set aside for the largest one. Other sessions' steps run between
    pieces of the tower, which are no longer than a chunk of a text.
    """

    def __init__(self, compute: Compute, runner: Runner, admission: Admission, on_done: Callable[[], None]) -> None:
        """`on_done`: a prompt may wait no longer."""
        self._compute = compute
        self._runner = runner
        self._admission = admission
        self._on_done = on_done
        self._slot: Slot | None = None
        """Whose pictures are being seen, or are seen."""
        self._task: asyncio.Task[None] | None = None

    def begin(self, step: Step | None) -> None:
        """Drop the pictures that no later step than this one, which is about to run, has places of; then begin with the next ones."""
        if (slot := self._slot) and (slot.gone or _is_behind(slot, step)):
            slot.seen = self._slot = None
            self.end()
        if self._slot is None and self._task is None:
            # A prompt that has begun comes first, as it has KV: else all prompts would end together, late.
            waiting = sorted(self._admission.prefills, key=lambda prefill: not prefill.begun)
            slots = (prefill.slots[0] for prefill in waiting)
            self._slot = next((slot for slot in slots if slot.is_blind and not slot.gone), None)
            if self._slot:
                self._task = asyncio.create_task(self._see(self._slot), name="pictures of a prompt")
                self._task.add_done_callback(self._ended)

    def end(self) -> None:
        if self._task:
            self._task.cancel()

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self._task = None
        self._on_done()

    async def _see(self, slot: Slot) -> None:
        """Root of a task: any error fails the session, unless the device did: that ends the ring."""
        session = slot.session
        try:
            # Chunks of a text are halved until they take no longer than STALL_S, so most of them take less.
            pieces = self._runner.see(session.request.pictures, session.request.prompt, slot.sent, STALL_S / 2)
            slot.see(await self._compute.run_pieces(pieces))
        except DeviceFailed:
            return
        except Exception as error:
            if not isinstance(error, PippinError):
                log.exception("the pictures of a prompt could not be computed")
            self._admission.fail(session, as_pippin_error(error))


def _is_behind(slot: Slot, step: Step | None) -> bool:
    """Whether all places of the pictures that the slot has are in steps before this one."""
    if slot.seen is None or slot.sent < slot.seen.end:
        return False
    return not (step and step.of_prompt and slot in step.rows and step.begin < slot.seen.end)
