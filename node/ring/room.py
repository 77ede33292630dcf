"""Whether a ring's KV has room for one more session until its answer has ended. Pure.

Most requests set no limit to their answer, so it may fill the whole context; few do. Reserved for the whole context, a
ring would serve a few sessions at a time. Reserved for what they hold now, all would be admitted, grow beyond the
budget, lose their KV and be computed again. So the ring reckons with answers as long as its last ones were.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence

from node.ring.lane import Lane
from node.ring.limits import RingLimits
from node.ring.session import HEADROOM, Session

RECENT = 256
"""Answers that are remembered."""
ENOUGH = 16
"""Answers that must have ended before they alone tell how long the next ones become."""
FIRST = 2048
"""Expected tokens of an answer when nothing is known."""
CERTAINTY = 0.75
"""Share of the answers that become no longer than expected."""


class AnswerLengths:
    """How long an answer becomes, from the last ones.

    The short ones of the answers that run now end first. To expect all to be so short would be wrong, so answers that
    still run, or ended only at the limit of their client, count as longer than they are (Kaplan and Meier, 1958).
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[int, bool]] = deque(maxlen=RECENT)
        """Tokens of the last answers, and whether they ended by themselves."""
        self._lengths: list[int] = []
        """Of answers that ended, in order."""
        self._shares: list[float] = []
        """The share of all answers that are longer than these; falling."""

    def add(self, tokens: int, *, ended: bool) -> None:
        """An answer is over. `ended`: by itself, not by a limit."""
        self._seen.append((tokens, ended))

    def estimate(self, running: Iterable[int]) -> None:
        """Bring `expected` up to date. `running`: tokens of the answers that have not ended."""
        known = sum(ended for _, ended in self._seen)
        ends = sorted([*(tokens for tokens, ended in self._seen if ended), *[FIRST] * (ENOUGH - known)])
        longer = sorted([*(tokens for tokens, ended in self._seen if not ended), *running])
        self._lengths, self._shares = sorted(set(ends)), []
        share = 1.0
        for tokens in self._lengths:
            first, last = bisect_left(ends, tokens), bisect_right(ends, tokens)
            as_long = len(ends) - first + len(longer) - bisect_left(longer, tokens)
            share *= 1 - (last - first) / as_long
            self._shares.append(share)

    def expected(self, tokens: int) -> int:
        """The length of an answer that has so many tokens already."""
        start = bisect_right(self._lengths, tokens)
        share = self._shares[start - 1] if start else 1.0
        wanted = bisect_left(self._shares, -share * (1 - CERTAINTY), lo=start, key=float.__neg__)
        return self._lengths[wanted] if wanted < len(self._lengths) else max(FIRST, 2 * tokens)


class Room:
    """The KV of a ring's lanes, in tokens. A lane needs its longest row times its rows, as rows are padded."""

    def __init__(self, limits: RingLimits, max_rows: int, lanes: int) -> None:
        """`max_rows`: sessions in a lane. `lanes`: number of them, apart from extra ones."""
        self.budget = limits.context * limits.max_sessions
        self._limits = limits
        self._max_rows = max_rows
        self._lanes = lanes
        self._answers = AnswerLengths()

    def ended(self, session: Session) -> None:
        """A session is over."""
        if session.generated:
            # At the end of the context nobody has limited the answer but the model, which did not end it.
            by_limit = session.generated >= session.request.max_tokens and session.max_length < self._limits.context
            self._answers.add(session.generated, ended=not by_limit)

    def used(self, lanes: Iterable[Lane]) -> int:
        """KV that the sessions need for their next tokens."""
        return sum(map(self.size, lanes))

    def size(self, lane: Lane) -> int:
        return self._padded([slot.session.reserved for slot in lane.slots()])

    def find(self, session: Session, lanes: Sequence[Lane], guests: Sequence[Session] = ()) -> Lane | None:
        """The lane that grows least by the session; None if there is no room, as that of `guests` is promised.

        Where rows would be padded by more than the weights that a step of one more lane reads, such a lane is begun.
        """
        running = [slot.session for lane in lanes for slot in lane.slots()]
        if not running and not guests:
            return lanes[0]
        self._answers.estimate(each.generated for each in running)
        sizes = {lane.number: self._expected_size(lane) for lane in lanes}
        promised = sum(self._padded([self._expected_length(guest)]) for guest in guests)
        is_full = len(running) + len(guests) >= self._max_rows * self._lanes
        open_lanes = [] if is_full else [lane for lane in lanes if len(lane.slots()) < self._max_rows]
        growth = {lane.number: self._expected_size(lane, session) - sizes[lane.number] for lane in open_lanes}
        has_enough_lanes = sum(1 for size in sizes.values() if size) >= self._lanes

        def cost(lane: Lane) -> tuple[int, int]:
            is_extra = has_enough_lanes and not sizes[lane.number]
            return growth[lane.number] + self._limits.weights * is_extra, len(lane.slots())

        home = min(open_lanes, key=cost, default=None)
        return home if home and promised + sum(sizes.values()) + growth[home.number] <= self.budget else None

    def _expected_size(self, lane: Lane, *guests: Session) -> int:
        """KV of a lane when its answers have ended, with more sessions if given."""
        return self._padded(
            [self._expected_length(each) for each in (*(slot.session for slot in lane.slots()), *guests)]
        )

    def _expected_length(self, session: Session) -> int:
        length = len(session.request.prompt) + self._answers.expected(session.generated) + HEADROOM
        return max(session.reserved, min(length, session.max_length))

    def _padded(self, lengths: Sequence[int]) -> int:
        return len(lengths) * self._limits.charge(max(lengths)) if lengths else 0
