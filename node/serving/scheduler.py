"""Decides what steps next: which sessions share a lane, whose prompt advances, and which caches are kept. Pure.

Sessions wait in order of arrival until there is KV for them. Then their prompt is run in chunks in a lane of its own,
a few prompts in turn; done, they join one of as many lanes as the ring has stages, where all rows step together. Between
two chunks every lane steps once, so a long prompt delays running streams by one chunk at most.

KV is accounted in tokens: the placement set aside `max_sessions` times the context. Sessions are charged for what their
caches have allocated, a lane for its longest row times its rows; what is left holds the KV of finished sessions for
those that begin alike. When a session grows beyond what is left, the last to join is put back and will be replayed.
"""

from collections import deque
from dataclasses import dataclass, replace
from functools import cache

from node.core.errors import BadRequest, ContextExceeded, Overloaded
from node.core.frames import CacheOp, Drop, Forget, Keep, Open, Reuse
from node.core.types import KvCost
from node.serving.lane import Lane, keep
from node.serving.prefixes import Prefixes
from node.serving.session import Seat, Session

PROMPTS_AT_ONCE = 4
"""Prompts that are run in turn: a short one does not wait for a long one, and none becomes slow for want of turns."""
FIRST_PROMPT_LANE = 1 << 16
"""Lanes of prompts have numbers from here on; those below are where sessions decode."""

ALLOCATED = 256
"""Tokens; the steps in which mlx-lm's caches grow."""


@dataclass(frozen=True, slots=True)
class Limits:
    context: int
    max_sessions: int
    """Sessions of the whole context for which there is KV."""
    max_queue: int
    max_rows: int
    """Sessions in a lane."""
    chunk: int
    """Tokens of a prompt in one step."""
    kv: tuple[KvCost, ...] = (KvCost(1),)
    """Of each layer of the model."""

    def charge(self, tokens: int) -> int:
        """What a sequence takes of the KV set aside, in tokens of a sequence of the whole context.

        It is the share of the layer for which it is largest, so it holds on every stage, whatever layers that has. A
        recurrent layer's state is as large for one token as for all, so there every session is charged the context.
        """
        return _charge(self.kv, self.context, min(-(-tokens // ALLOCATED) * ALLOCATED, self.context))


@cache
def _charge(kv: tuple[KvCost, ...], context: int, tokens: int) -> int:
    whole = [(cost.bytes_for(tokens), cost.bytes_for(context)) for cost in set(kv)]
    return max((-(-part * context // most) for part, most in whole if most), default=tokens)


@dataclass(frozen=True, slots=True)
class Step:
    """Do `ops`, then run `tokens`, one row for each seat; `samples` when each row yields its session's next token."""

    lane: int
    ops: tuple[CacheOp, ...]
    rows: tuple[Seat, ...]
    tokens: tuple[tuple[int, ...], ...]
    samples: bool


@dataclass(slots=True, eq=False)
class _Prompt:
    """A prompt that is being run in a lane of its own."""

    seat: Seat
    lane: int
    home: Lane
    under_way: int = 0
    """Chunks that have not come back."""

    @property
    def ready(self) -> bool:
        return not self.seat.gone and self.seat.sent < len(self.seat.session.tokens)


class Scheduler:
    """`stages` of the ring; `batchable`: the model's sessions can share a lane; `trimmable`: its caches can go back."""

    def __init__(self, limits: Limits, *, stages: int, batchable: bool, trimmable: bool) -> None:
        self._limits = limits
        self._budget = limits.context * limits.max_sessions
        self._max_rows = limits.max_rows if batchable else 1
        self._trimmable = trimmable
        lanes = stages if batchable else max(stages, limits.max_sessions)
        self._lanes = deque(Lane(number) for number in range(lanes))
        self._prompts: deque[_Prompt] = deque()
        self._waiting: deque[Session] = deque()
        self._prefixes = Prefixes(limits.charge, trimmable=trimmable)
        self._ops: list[CacheOp] = []
        self._next_lane = FIRST_PROMPT_LANE
        self._steps_since_chunk = 0

    # --- sessions come and go -----------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        return sum(len(lane.seats()) for lane in self._lanes)

    @property
    def queued(self) -> int:
        return len(self._waiting)

    @property
    def tokens_held(self) -> int:
        """Tokens of KV that are set aside or kept; never more than the budget for longer than one step."""
        return self._used() + self._prefixes.charged

    def sessions(self) -> list[Session]:
        """Running and waiting, in the order in which they came."""
        return [*(seat.session for lane in self._lanes for seat in lane.seats()), *self._waiting]

    def submit(self, session: Session) -> None:
        """Raises BadRequest, ContextExceeded, or Overloaded when the queue is full."""
        if not session.request.prompt or len(session.request.resume) >= session.request.max_tokens:
            raise BadRequest("There is nothing to begin from, or nothing left to generate.")
        if session.longest > self._limits.context:
            raise ContextExceeded(
                f"This model's context is {self._limits.context} tokens; {len(session.request.prompt)} of prompt and "
                f"{session.request.max_tokens} to generate are {session.longest}.",
                hint="Send a shorter prompt or ask for fewer tokens.",
            )
        # A session that lost its ring has begun already: refusing it now would break its stream.
        if not session.request.resume and len(self._waiting) >= self._limits.max_queue:
            raise Overloaded(f"{len(self._waiting)} requests are waiting already.", hint="Try again in a moment.")
        self._waiting.append(session)

    def finish(self, session: Session, *, keep: bool) -> None:
        """It is done, or nobody wants it any more; `keep` its KV for later sessions if there is room."""
        session.finished = True
        if session.seat:
            session.seat.gone, session.seat.keep = True, keep
            self._clear_prompts()
        elif session in self._waiting:
            self._waiting.remove(session)

    def rewind(self) -> None:
        """All KV is lost: every session that had some starts again from its tokens, before those that wait."""
        for seat in reversed([seat for lane in self._lanes for seat in lane.seats()]):
            self._wait_again(seat)
        self._lanes = deque(Lane(number) for number in range(len(self._lanes)))
        self._prompts.clear()
        self._prefixes = Prefixes(self._limits.charge, trimmable=self._trimmable)
        self._ops.clear()

    # --- steps --------------------------------------------------------------------------------------------------------

    def next(self) -> Step | None:
        """The next step; None when all that could step is under way."""
        self._clear_lanes()
        self._make_room()
        self._admit()
        lane = next((lane for lane in self._lanes if lane.ready), None)
        prompt = next((prompt for prompt in self._prompts if prompt.ready), None)
        decoding = sum(1 for lane in self._lanes if lane.rows or lane.joining)
        if lane and (prompt is None or self._steps_since_chunk < decoding):
            self._steps_since_chunk += 1
            return self._decode(lane)
        if prompt:
            self._steps_since_chunk = 0
            return self._prefill(prompt)
        return None

    def landed(self, step: Step) -> None:
        """A step came back; the caller has given its sessions their tokens."""
        for lane in self._lanes:
            if lane.number == step.lane:
                lane.busy = False
        for prompt in list(self._prompts):
            if prompt.lane == step.lane:
                prompt.under_way -= 1
                if step.samples and not prompt.seat.gone:
                    self._join(prompt)
        self._clear_prompts()

    def goes_on(self, step: Step) -> bool:
        """Whether the step's lane would step again with the same rows and nothing in between, if none of them ends."""
        lane = next((lane for lane in self._lanes if lane.number == step.lane), None)
        changes = lane is None or lane.joining or any(seat.gone for seat in lane.rows)
        others = self._waiting or self._prompts or self._ops
        return not changes and not others and self.tokens_held <= self._budget

    def go_on(self, step: Step) -> Step:
        """The lane's next step, which has begun already, after `step` has landed."""
        lane = next(lane for lane in self._lanes if lane.number == step.lane)
        for seat in lane.rows:
            seat.sent = len(seat.session.tokens)
        lane.busy = True
        return replace(step, ops=(), tokens=())

    def take_ops(self) -> tuple[CacheOp, ...]:
        """Operations that belong to no step, to go with the next one or alone."""
        self._clear_lanes()
        ops, self._ops = tuple(self._ops), []
        return ops

    def _clear_lanes(self) -> None:
        """Free lanes that nobody is left in; the others free what they can with their next step."""
        for lane in self._lanes:
            if lane.idle and not lane.ready:
                self._ops += lane.prepare(self._keep_as)

    def _decode(self, lane: Lane) -> Step:
        self._lanes.remove(lane)
        self._lanes.append(lane)
        ops = (*self.take_ops(), *lane.prepare(self._keep_as))
        tokens = tuple(tuple(seat.session.tokens[seat.sent :]) for seat in lane.rows)
        for seat in lane.rows:
            seat.sent = len(seat.session.tokens)
        lane.busy = True
        return Step(lane.number, ops, tuple(lane.rows), tokens, samples=True)

    def _prefill(self, prompt: _Prompt) -> Step:
        self._prompts.remove(prompt)
        self._prompts.append(prompt)
        seat, tokens = prompt.seat, prompt.seat.session.tokens
        begin, end = seat.sent, min(seat.sent + self._limits.chunk, len(tokens))
        seat.sent = end
        prompt.under_way += 1
        return Step(prompt.lane, self.take_ops(), (seat,), (tuple(tokens[begin:end]),), samples=end == len(tokens))

    def _join(self, prompt: _Prompt) -> None:
        self._prompts.remove(prompt)
        prompt.home.coming.remove(prompt.seat)
        prompt.home.joining.append((prompt.seat, prompt.lane))
        if not self._trimmable:  # the only position to which a later session can go back
            self._ops += [Keep(prompt.lane, 0, number) for number in [self._keep_as(prompt.seat)] if number is not None]

    def _clear_prompts(self) -> None:
        """Drop the lanes of prompts that nobody waits for, once their last chunk is back."""
        for prompt in [prompt for prompt in self._prompts if prompt.seat.gone and not prompt.under_way]:
            self._prompts.remove(prompt)
            prompt.home.coming.remove(prompt.seat)
            self._ops += [*keep(prompt.seat, prompt.lane, 0, self._keep_as), Drop(prompt.lane)]

    # --- room ---------------------------------------------------------------------------------------------------------

    def _size(self, lane: Lane, guest: Session | None = None) -> int:
        """KV that a lane takes, as it is or with one more session: rows are padded to the longest."""
        reserved = [seat.session.reserved for seat in lane.seats()]
        if guest:
            reserved.append(guest.reserved)
        return len(reserved) * self._limits.charge(max(reserved)) if reserved else 0

    def _used(self) -> int:
        return sum(self._size(lane) for lane in self._lanes)

    def _admit(self) -> None:
        while self._waiting and len(self._prompts) < PROMPTS_AT_ONCE:
            session = self._waiting[0]
            homes = [lane for lane in self._lanes if len(lane.seats()) < self._max_rows]
            home = min(
                homes, key=lambda lane: (self._size(lane, session) - self._size(lane), len(lane.seats())), default=None
            )
            if home is None or self._used() - self._size(home) + self._size(home, session) > self._budget:
                return
            self._waiting.popleft()
            self._begin(session, home)
            self._evict()

    def _begin(self, session: Session, home: Lane) -> None:
        lane = self._next_lane
        self._next_lane += 1
        match = self._prefixes.best(session.tokens[:-1])
        reused = match.tokens if match else 0
        session.seat = Seat(session, sent=reused, cached=reused)
        home.coming.append(session.seat)
        self._ops.append(Reuse(lane, match.prefix, match.tokens) if match else Open(lane))
        self._prompts.append(_Prompt(session.seat, lane, home))

    def _make_room(self) -> None:
        """Sessions have grown: let go of kept KV, then of the last session of the largest lane."""
        self._evict()
        while self._used() > self._budget and self.running > 1:
            last = max(self._lanes, key=self._size).seats()[-1]
            self._wait_again(last)
            self._clear_prompts()

    def _wait_again(self, seat: Seat) -> None:
        """The session gives up its KV and is next in line; its tokens will be replayed."""
        seat.gone = True
        seat.session.seat = None
        self._waiting.appendleft(seat.session)

    def _evict(self, room: int = 0) -> None:
        """Let go of kept KV until the rest, and `room` tokens more, are within the budget."""
        while self._used() + self._prefixes.charged + room > self._budget:
            number = self._prefixes.evict()
            if number is None:
                return
            self._ops.append(Forget(number))

    def _keep_as(self, seat: Seat) -> int | None:
        held = seat.session.tokens[: seat.sent]
        room = self._limits.charge(len(held))
        if not self._prefixes.worth_adding(held) or self._used() + room > self._budget:
            return None
        self._evict(room)
        number, needless = self._prefixes.add(held)
        self._ops += [Forget(old) for old in needless]
        return number
