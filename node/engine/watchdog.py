"""Watchdog of the compute thread: detects a job that does not end, and a device that fails for good."""

import asyncio
import faulthandler
import logging

from node.core.clock import in_step, now
from node.core.errors import PippinError
from node.engine.compute import Compute

log = logging.getLogger(__name__)

LOOK_S = 1.0
MAX_PIECE_S = 600.0
"""Time limit of a piece of a load: it reads one tensor, maybe from a sleeping or remote disk, or compiles a kernel."""


class ComputeStuck(PippinError):
    """A job of the compute thread does not end. It cannot be stopped without ending the process."""

    code = "compute_stuck"
    status = 503
    retry_after = 2


class Watchdog:
    """Checks the job once a second. Counts only time in which this process ran, not time in which the machine slept."""

    def __init__(self, compute: Compute, step_timeout_s: float) -> None:
        """`step_timeout_s`: time limit of a job; a piece of a long job has at least MAX_PIECE_S."""
        self._compute = compute
        self._step_timeout = step_timeout_s
        self.age_s = 0.0
        """Age of the running job; 0 if it began since the last check."""

    async def lost(self) -> PippinError:
        """Wait until a job exceeds its time limit, and the stacks of all threads are logged (ComputeStuck), or until the
        device is lost (DeviceFailed).
        """
        job, looked_at = self._compute.job, now()
        while True:
            await asyncio.sleep(in_step(LOOK_S))
            since, looked_at = now() - looked_at, now()
            if lost := self._compute.faults.lost:
                return lost
            if job is None or self._compute.job is not job:
                job, self.age_s = self._compute.job, 0.0
                continue
            self.age_s += min(since, 2 * LOOK_S)
            limit = max(MAX_PIECE_S, self._step_timeout) if job.piece else self._step_timeout
            if self.age_s >= limit:
                faulthandler.dump_traceback()
                return ComputeStuck(f"The compute thread has been at one job for {self.age_s:.0f} s.")
