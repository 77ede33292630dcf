"""One stage's work on frames, as serving asks for it. All methods run in the compute thread."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import mlx.core as mx

from node.core.errors import PippinError
from node.core.frames import CacheOp, Frame
from node.core.types import Sampling
from node.engine.codec import pack, unpack
from node.engine.sampling import History, Sampled, sample
from node.engine.stage import Stage


class StepFailed(PippinError):
    """MLX could not compute a step."""

    code = "step_failed"


@dataclass(frozen=True, slots=True)
class Draw:
    """What sampling needs to know of a session: the token to draw has `position`, from 0, and follows `history`."""

    sampling: Sampling
    position: int
    history: History


class Runner:
    """Raises StepFailed when a step can't be computed, and the codec's errors for what came over the network."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.kv_bytes = 0
        """What the caches took after the last operation on them; may be read in any thread."""

    def apply(self, ops: Sequence[CacheOp]) -> None:
        for op in ops:
            self._stage.apply(op)
        if ops:
            self.kv_bytes = self._stage.kv_bytes

    def reset(self) -> None:
        """Free all KV."""
        self._stage.clear()
        self.kv_bytes = 0

    # --- the driver ---

    def begin(self, frame: Frame, tokens: Sequence[int]) -> Frame:
        """Operations and the driver's layers; gives the frame for the next stage."""
        assert frame.lane is not None
        with _step():
            self.apply(frame.ops)
            ids = mx.array([tokens], mx.int32)
            tensors = pack(self._stage.begin(frame.lane, ids))
            return replace(frame, tensors=tensors, tokens=pack([ids])[0] if self._stage.plan.reads_tokens else None)

    def finish(self, frame: Frame, draw: Draw) -> Sampled:
        """Head and sampling of what came round."""
        with _step():
            return self._draw(unpack(frame.tensors), draw)

    def run_alone(self, frame: Frame, tokens: Sequence[int], draw: Draw | None) -> Sampled | None:
        """A whole step of a ring of one node; None when nothing is to be sampled."""
        assert frame.lane is not None
        with _step():
            self.apply(frame.ops)
            hidden = self._stage.begin(frame.lane, mx.array([tokens], mx.int32))
            return self._draw(hidden, draw) if draw else None

    def _draw(self, hidden: Sequence[mx.array], draw: Draw) -> Sampled:
        logits = self._stage.finish(hidden)
        (drawn,) = sample(logits, [draw.sampling], [draw.position], [draw.history])
        return drawn

    # --- the other stages ---

    def relay(self, frame: Frame) -> Frame:
        """Operations and this stage's layers; gives the frame for the next stage. A failed step passes as it is."""
        with _step():
            self.apply(frame.ops)
            if frame.lane is None or frame.failure:
                return frame
            tokens = unpack([frame.tokens])[0] if frame.tokens else None
            hidden = self._stage.run(frame.lane, unpack(frame.tensors), tokens, frame.lengths)
            return replace(frame, tensors=pack(hidden))


@contextmanager
def _step() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, MemoryError) as error:  # what MLX raises: out of memory, shapes that do not fit
        raise StepFailed(f"The step could not be computed: {error}") from error
