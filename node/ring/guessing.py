"""What a driver needs to guess tokens, beside what its sessions know: a draft model, if a node asks for one."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from node.core.guesses import Memory
from node.core.row_family import RowFamily
from node.engine.compute import Compute
from node.engine.draft import DraftFailed, DraftModel
from node.ring.session import Session

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Guessing:
    draft: DraftModel | None = None
    is_wire_slow: Callable[[], bool] = lambda: False
    """See Flight.wire_is_slow. It is asked once a second, as paths change."""
    family: Callable[[], RowFamily] = RowFamily
    """What all stages have proven of the rows of a step. It is asked at the first request, when all of them are ready."""
    memory: Memory = field(default_factory=Memory)
    """What was said in this ring; or in all of the node, so that it outlives rings."""

    @property
    def kv_bytes(self) -> int:
        return self.draft.kv_bytes if self.draft else 0

    async def run_draft(self, compute: Compute, session: Session, guessed: Sequence[int]) -> None:
        """Have the draft model draw the token after these guesses, or compute a part of the prompt. It goes if it fails."""
        assert self.draft
        verified, tokens, draw = len(session.tokens), [*session.tokens, *guessed], session.draw(guessed)
        # Without log-probabilities, which nobody reads, and without the grammar, which the verifying draw follows.
        draw = replace(draw, sampling=replace(draw.sampling, logprobs=None), constraint=None)
        try:
            token = await compute.run(self.draft.guess, tokens, verified, draw)
        except DraftFailed as error:
            log.warning("the ring of %s goes on without its draft model: %s", session.request.model, error)
            await self.clear(compute)
            self.draft = None
        else:
            if token is not None:
                session.add_draft(tokens, verified, token)

    async def clear(self, compute: Compute) -> None:
        """Free the draft model's KV."""
        if self.draft:
            await compute.run(self.draft.clear)
