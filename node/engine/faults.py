"""Failures of the device. An error of work that MLX had begun may surface in any later job, also of another ring.

MLX keeps such an error once for each stream, and raises it where the stream is used next. What the failed work should
have computed, such as KV, counts as computed all the same. So after an error no KV is trusted, of whichever ring.
"""

import logging

from node.core.errors import DeviceFailed, DeviceTimeout
from node.core.mlx_errors import Fault, fault_of

log = logging.getLogger(__name__)

MAX_IN_ROW = 3
"""Failures without TRUSTED_STEPS good steps between, after which the device counts as lost."""
TRUSTED_STEPS = 100
"""Good steps in a row after which a device that has failed is no longer suspect."""


class Faults:
    """Counts the failures of a device, in the compute thread. The values may be read in any thread."""

    def __init__(self) -> None:
        self.count = 0
        """Failures since the start. KV that is older than the last one is void."""
        self.last: DeviceFailed | None = None
        self.lost: DeviceFailed | None = None
        """The failure after which only the end of the process may help."""
        self._in_row = 0
        self._good_steps = TRUSTED_STEPS
        """Since the last failure."""

    @property
    def is_suspect(self) -> bool:
        """Whether the device has failed lately: then all work of a step is waited for before its results are used."""
        return self._good_steps < TRUSTED_STEPS

    def note(self, error: BaseException) -> DeviceFailed | None:
        """Count the exception of a job if the device failed. Returns the failure, not to be raised itself; None for others."""
        if (found := fault_of(error)) is None:
            return None
        fault, text = found
        self.count += 1
        self._good_steps = 0
        # Shorter chunks mend time-outs, and rings that end free memory. macOS refuses work if neither helps.
        self._in_row += fault not in (Fault.TIMEOUT, Fault.MEMORY)
        kind = DeviceTimeout if fault is Fault.TIMEOUT else DeviceFailed
        self.last = kind(f"The GPU failed: {text}")
        if fault is Fault.REFUSED or self._in_row >= MAX_IN_ROW:
            self.lost = self.last
        log.error("the GPU failed, for the %d. time since the start: %s", self.count, text)
        return self.last

    def good_step(self) -> None:
        """The device has done all work of a step, and has not failed."""
        self._good_steps += 1
        if not self.is_suspect:
            self._in_row = 0

    def check(self, since: int) -> None:
        """Raises DeviceFailed if the device has failed since `count` was this."""
        if self.count != since:
            raise DeviceFailed(f"The GPU has failed since this ring began, so its KV is void. {self.last}")
