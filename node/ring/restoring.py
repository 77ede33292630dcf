"""Whether a session that waits may find KV of its beginning on the disks of the nodes, and what it then begins with. Pure.

The stages are asked for one session at a time, which waits until all have answered. They read no longer than the tokens would take
to be computed: so a slow disk, or a slow node that has the KV, costs no more than twice the time without it.
"""

from collections.abc import Iterator

from node.core.frames import Forget, Restore, SequenceId
from node.kv.blocks import BLOCK, chain_of
from node.ring.admission import MIN_STORED, Admission
from node.ring.session import Session
from node.ring.sharing import most_shared, waits

UNKNOWN_S = 10.0
"""Time that the stages may take together while it is not known how long their prompts take."""
MIN_S, MAX_S = 0.5, 20.0
"""Bounds of that time otherwise."""


class Restoring:
    """KV from disks for the sessions of a ring."""

    def __init__(self, admission: Admission, numbers: Iterator[SequenceId]) -> None:
        """`numbers`: see Scheduler."""
        self._admission = admission
        self._numbers = numbers
        self._session: Session | None = None
        """The one that waits."""

    def begin(self) -> Restore | None:
        """What to ask the stages for, if a session may gain by it; it waits until `end`."""
        admission = self._admission
        if self._session or admission.limits.stored is None or not admission.plan.trimmable:
            return None
        computing = [slot for prefill in admission.prefills for slot in prefill.slots if not slot.gone]
        for session in admission.waiting:
            if not session.sought and admission.may_reuse(session) and not waits(session, computing):
                session.sought = True
                if asked := self._asked(session):
                    self._session, session.restores = session, True
                    return asked
        return None

    def _asked(self, session: Session) -> Restore | None:
        """None if the session is short, has most of its KV in memory, or there is no room for more."""
        admission, limits = self._admission, self._admission.limits
        whole = (len(session.tokens) - 1) // BLOCK * BLOCK  # its last one must be computed to draw the next
        match = admission.prefixes.best(session.tokens[:-1])
        shared = most_shared(session, admission.slots())
        here = max(match.tokens if match else 0, shared[1] if shared else 0)
        size = limits.charge(whole)
        if whole - here < MIN_STORED or admission.room.used(admission.lanes) + size > admission.room.budget:
            return None
        admission.set_aside = size
        admission.evict()
        seconds = admission.chunk_size.token_s * (whole - here)
        limit = min(max(seconds, MIN_S), MAX_S) if seconds else UNKNOWN_S
        assert limits.stored
        return Restore(next(self._numbers), whole, here + BLOCK, chain_of(limits.stored, session.tokens[:whole]), limit)

    def end(self, found: Restore, *, is_exact: bool) -> None:
        """All stages have made a prefix of the first tokens that `found` tells. `is_exact`: none has more of them."""
        session, self._session, self._admission.set_aside = self._session, None, 0
        assert session
        session.restores = False
        tokens, prefixes = session.tokens[: found.tokens], self._admission.prefixes
        if not tokens:
            self._admission.ops.append(Forget(found.number))  # some stages may have it
        elif is_exact:
            self._admission.ops += [Forget(old) for old in prefixes.add(found.number, tokens)]
        else:
            prefixes.inherit(found.number, tokens)
        self._admission.evict()
