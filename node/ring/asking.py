"""How a driver has all stages of its ring take KV from disks for the sessions that wait for it: see node.ring.taking."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from node.core.errors import PippinError, as_pippin_error
from node.core.frames import Forget, Restore, SequenceId
from node.ring.admission import Admission
from node.ring.pipeline import Pipeline
from node.ring.taking import Taking

log = logging.getLogger(__name__)


class Asking:
    """A task for each session asks until no stage is looking any more."""

    def __init__(
        self,
        taking: Taking,
        pipeline: Pipeline,
        admission: Admission,
        on_done: Callable[[], None],
        on_failed: Callable[[PippinError], None],
        *,
        has_one_stage: bool,
    ) -> None:
        """`taking`: of this stage. `on_done`: a session waits no longer. `has_one_stage`: the ring has no other."""
        self._taking = taking
        self._pipeline = pipeline
        self._admission = admission
        self._on_done = on_done
        self._on_failed = on_failed
        self._has_one_stage = has_one_stage
        self._tasks: dict[SequenceId, asyncio.Task[None]] = {}
        self._told: dict[SequenceId, asyncio.Future[Restore]] = {}
        """What the other stages will say."""

    def begin(self) -> None:
        """Ask for the sessions that have begun to wait."""
        for asked in self._admission.restoring.pop_asked():
            self._tasks[asked.number] = asyncio.create_task(self._ask(asked), name=f"KV for {asked.number}")

    def answered(self, asked: Restore, told: Restore | None) -> None:
        """What the stages say has come back. A stage that knows of no KV on disks drops the question."""
        self._told.pop(asked.number).set_result(told or replace(asked, tokens=0))

    def end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._taking.end()

    async def _ask(self, asked: Restore) -> None:
        """Root of a task: any error ends the ring."""
        number, told = asked.number, asked
        try:
            while told.tokens >= asked.least:
                told = self._taking.told(told)
                if told.tokens >= asked.least and not self._has_one_stage:
                    answer: asyncio.Future[Restore] = asyncio.get_running_loop().create_future()
                    self._told[told.number] = answer
                    self._pipeline.open()
                    await self._pipeline.send(self._pipeline.frame(restore=told))
                    told = await answer
                if not told.pending:
                    break
                told = replace(told, chain=b"", pending=False, longest=0)
                await self._taking.wait(number, 0.1)
            self._taking.forget([Forget(number)])
            self._admission.restored(asked, told)
            del self._tasks[number]
            self._on_done()
        except Exception as error:
            if not isinstance(error, PippinError):
                log.exception("KV could not be taken from the disk")
            self._on_failed(as_pippin_error(error))
