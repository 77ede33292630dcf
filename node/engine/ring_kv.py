"""The KV of one ring on a stage, which outlives the ring: the next one of the same layers takes it over, and disks keep some."""

import logging
from collections.abc import Generator, Sequence

import mlx.core as mx

from node.core.errors import PippinError
from node.core.frames import CacheOp, Held, SequenceId
from node.core.mlx_errors import MLX_ERRORS, fault_of
from node.engine.faults import Faults
from node.engine.kv_blocks import Block
from node.engine.lanes import LeftoverKv
from node.engine.stage import Stage
from node.kv.blocks import BLOCK

log = logging.getLogger(__name__)


class RingKv:
    """Methods run in the compute thread; attributes and `has_sessions` may be read in any thread."""

    def __init__(self, stage: Stage, faults: Faults) -> None:
        """`faults`: of the device."""
        self._stage = stage
        self._faults = faults
        self._since = faults.count
        """Failures of the device before this ring began."""
        self.blocks_of, self.cut_caches, self.state_caches = stage.blocks_of, stage.cut_caches, stage.state_caches
        """The caches that are kept on disk, those that have something in a block, and those that have a state; see Stage."""
        self.trimmable = stage.plan.trimmable
        costs = stage.plan.kv[stage.start : stage.end]
        self.block_bytes = 2 * BLOCK * sum(cost.per_token for cost in costs) + (1 << 20)
        """More than a block of them has."""
        self.state_bytes = 2 * sum(cost.fixed + cost.per_token * cost.window for cost in costs) + (1 << 20)
        """More than their state has."""
        self.nbytes = 0
        """Of the caches after the last operation on them."""

    @property
    def has_sessions(self) -> bool:
        """Whether sessions have KV here."""
        return self._stage.lanes.has_sessions

    def check(self) -> None:
        """Raises DeviceFailed if the device has failed since the ring began."""
        self._faults.check(self._since)

    def apply(self, ops: Sequence[CacheOp]) -> None:
        try:
            for op in ops:
                self._stage.lanes.apply(op)
        except MLX_ERRORS:  # the operation may have changed the caches of some layers only
            self.free()
            raise
        if ops:
            self.nbytes = self._stage.lanes.kv_bytes

    def free(self) -> None:
        self._stage.lanes.clear()
        self.nbytes = 0

    # --- from ring to ring --------------------------------------------------------------------------------------------

    def inherit(self, held: Sequence[Held]) -> tuple[Held, ...]:
        """Take over the KV that earlier rings left of these sequences, and free their other KV. See Lanes.inherit."""
        try:
            here = self._stage.lanes.inherit(self._leftover(), held)
        except MLX_ERRORS as error:
            if fault_of(error):
                raise
            log.warning("could not take over the KV of earlier rings: %s", error)
            self._stage.leftover.clear()
            self.free()
            return ()
        self.nbytes = self._stage.lanes.kv_bytes
        return here

    def leave(self) -> None:
        """Keep it for the next ring of these layers, unless the device has failed since this one began."""
        leftover = self._leftover()
        if self._faults.count == self._since:
            self._stage.lanes.leave(leftover)
            self.nbytes = 0
        else:
            self.free()

    def _leftover(self) -> LeftoverKv:
        """What earlier rings left since the device failed last."""
        leftover, count = self._stage.leftover, self._faults.count
        if leftover.faults != count:
            leftover.clear()
            leftover.faults = count
        return leftover

    # --- to disks, and from them --------------------------------------------------------------------------------------

    def block(self, number: SequenceId, index: int) -> Block | None:
        """See Stage.block. None also after a failure of the device, as the KV may be wrong."""
        return self._stage.block(number, index) if self._is_intact() else None

    def state(self, number: SequenceId) -> Block | None:
        """See Stage.state, and `block`."""
        return self._stage.state(number) if self._is_intact() else None

    def _is_intact(self) -> bool:
        """Whether it is known to be right, so that it may outlive this process."""
        mx.synchronize()
        return self._faults.count == self._since

    def restore(
        self, prefix: SequenceId, blocks: Sequence[Block], state: Block | None, tokens: int
    ) -> Generator[float, None, int | None]:
        """See Stage.restore. Returns None if MLX fails."""
        try:
            whole = yield from self._stage.restore(prefix, blocks, state, tokens)
        except (PippinError, *MLX_ERRORS) as error:
            if fault_of(error):
                raise
            log.warning("could not take over KV from disks: %s", error)
            return None
        self.nbytes = self._stage.lanes.kv_bytes
        return whole
