"""KV that the stages take from the disks of nodes, for sessions that wait for it. Pure.

A session that is about to begin, and of whose beginning too little is in memory, waits once until the stages have looked for the
rest. Its room is set aside meanwhile. They read no longer than the tokens would take to be computed: so a slow disk, or a slow node
that has the KV, costs no more than twice the time without it.
"""

from collections.abc import Iterator

from node.core.frames import Restore, SequenceId
from node.kv.blocks import BLOCK, chain_of
from node.ring.limits import RingLimits
from node.ring.prefixes import BYTES, common_tokens
from node.ring.session import Session

MIN_STORED = 1024
"""Tokens from which KV is kept on disks: fewer are soon computed."""
UNKNOWN_S = 10.0
"""Time that a stage may take while it is not known how long prompts take."""
MIN_S, MAX_S = 0.5, 60.0
"""Bounds of that time otherwise."""


class Restoring:
    """The sessions of a ring for which KV is on its way."""

    def __init__(self, limits: RingLimits, numbers: Iterator[SequenceId]) -> None:
        """`numbers`: see Scheduler."""
        self._limits = limits
        self._numbers = numbers
        self._sessions: dict[SequenceId, Session] = {}
        """Those that wait, by the number of the prefix to be made."""
        self._done: dict[SequenceId, Session] = {}
        """Those that have one, until they begin."""
        self._asked: list[Restore] = []

    def ask(self, session: Session, here: int, token_s: float) -> bool:
        """Have the stages asked for a session's KV, of which `here` tokens are in memory, if it may gain by it. It then waits until
        `end`. `token_s`: seconds in which a token is computed; 0 if that is not known.
        """
        whole = whole_tokens(session)
        if session.sought or self._limits.stored is None or whole - here < MIN_STORED:
            return False
        session.sought = True
        number, chain = next(self._numbers), chain_of(self._limits.stored, session.tokens[:whole])
        seconds = min(max(token_s * (whole - here), MIN_S), MAX_S) if token_s else UNKNOWN_S
        self._sessions[number] = session
        self._asked.append(Restore(number, whole, here + BLOCK, chain, seconds))
        return True

    def pop_asked(self) -> list[Restore]:
        """What the stages are yet to be asked for."""
        asked, self._asked = self._asked, []
        return asked

    def end(self, number: SequenceId) -> Session:
        """The stages have looked for what was asked under this number. Returns whose it is."""
        session = self._done[number] = self._sessions.pop(number)
        return session

    def waits(self, session: Session) -> bool:
        """Whether its KV is on its way, or most of it for another session."""
        least = MIN_STORED * BYTES
        for other in self._sessions.values():
            if other is session:
                return True
            if len(session.beginning) > least and session.beginning[:least] == other.beginning[:least]:
                common = min(common_tokens(session.beginning, other.beginning), whole_tokens(other))
                if whole_tokens(session) - common < MIN_STORED:
                    return True
        return False

    @property
    def guests(self) -> list[Session]:
        """Those that will need room when they have their KV."""
        return list(self._sessions.values())

    @property
    def tokens(self) -> int:
        """KV that the stages make meanwhile."""
        return sum(self._limits.charge(whole_tokens(session)) for session in self._sessions.values())

    @property
    def spared(self) -> dict[SequenceId, int]:
        """Prefixes of sessions that are yet to begin, and the KV of each at most."""
        self._done = {number: each for number, each in self._done.items() if not (each.finished or each.slot)}
        return {number: self._limits.charge(whole_tokens(each)) for number, each in self._done.items()}


def whole_tokens(session: Session) -> int:
    """The tokens of its whole blocks, but for the last one, which must be computed to draw the next."""
    return (len(session.tokens) - 1) // BLOCK * BLOCK
