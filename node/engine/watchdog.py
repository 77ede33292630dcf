"""How long the compute thread has been at one job, and when that job will never end."""

import asyncio
import faulthandler
import logging

from node.core.clock import now
from node.core.errors import PippinError
from node.engine.compute import Compute

log = logging.getLogger(__name__)

LOOK_S = 1.0
LONGEST_PIECE_S = 600.0
"""Of a piece of a load: one tensor, read from a disk that may have to wake up or be on the network, or a kernel that is
compiled."""


class ComputeStuck(PippinError):
    """A job of the compute thread does not end. Nothing can end it but the end of the process."""

    code = "compute_stuck"
    status = 503
    retry_after = 2


class Watchdog:
    """Looks once a second. Only time in which this process ran counts: a machine that slept was at nothing."""

    def __init__(self, compute: Compute, step_timeout_s: float) -> None:
        """`step_timeout_s`: a job may take so long, unless it is a piece of a long one."""
        self._compute = compute
        self._step_timeout = step_timeout_s
        self.age_s = 0.0
        """Of the job that runs; 0 if it began since the last look."""

    async def stuck(self) -> ComputeStuck:
        """Returns when a job has run for too long, with where it is in the log."""
        job, looked_at = self._compute.job, now()
        while True:
            await asyncio.sleep(LOOK_S)
            since, looked_at = now() - looked_at, now()
            if job is None or self._compute.job is not job:
                job, self.age_s = self._compute.job, 0.0
                continue
            self.age_s += min(since, 2 * LOOK_S)
            limit = max(LONGEST_PIECE_S, self._step_timeout) if job.piece else self._step_timeout
            if self.age_s >= limit:
                faulthandler.dump_traceback()
                return ComputeStuck(f"The compute thread has been at one job for {self.age_s:.0f} s.")
