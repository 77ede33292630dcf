"""Decides what steps next: which sessions share a lane, whose prompt advances, and which caches are kept. Pure.

Sessions wait until there is KV for them, in an order that is fair among clients; while enough long prompts are run, short
ones go past the rest. Then their prompt is run in a lane of its own, in chunks, or together with others when they are short; such lanes
take turns. Done, they join one of as many lanes as the ring has stages, where all rows step together. Between two chunks
every lane steps once, and a chunk is no longer than streams may be held up.

KV is accounted in tokens: the placement set aside `max_sessions` times the context. Sessions are charged for what their
caches have allocated, a lane for its longest row times its rows; what is left holds the KV of finished sessions for
those that begin alike. When a session grows beyond what is left, the last to join is put back and will be replayed. So is
the last of a client that has several places when another client has none.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import count
from operator import itemgetter

from node.core.errors import BadRequest, ContextExceeded, Overloaded
from node.core.frames import CacheOp, Forget, Held, Keep, Merge, Open, Reuse
from node.core.types import NodeInfo
from node.ring.lane import Lane, part
from node.ring.limits import Limits
from node.ring.prefixes import SHORTEST, Prefixes
from node.ring.prompts import Pace, Prompts
from node.ring.session import Slot, Session
from node.ring.step import Step
from node.ring.waiting import Waiting

LONG_PROMPTS = 4
"""Prompts of more than a step that are run in turn: none becomes slow for want of turns. Short ones go past the others."""
FIRST_NUMBER = 1 << 16
"""Lanes of prompts and prefixes have numbers from here on; those below are where sessions decode."""


def sequence_numbers(info: NodeInfo) -> Iterator[int]:
    """For the sequences of all rings that a node's process drives: no other process of any node has them.

    Of 62 bits, as a driver that was started again, and another one, may find KV of earlier numbers at a stage.
    """
    digest = sha256(f"{info.id} {info.incarnation} {info.started_at}".encode()).digest()
    return count(max(FIRST_NUMBER, int.from_bytes(digest[:8]) >> 2))


class Scheduler:
    """`stages` of the ring; `batchable`: the model's sessions can share a lane; `pads`: so can prompts of different
    lengths; `trimmable`: its caches can go back. `grid`: tokens at whose multiples prompts are divided, whatever else there is
    to do, where the answer depends on it; 0 where it does not. `numbers`: see `sequence_numbers`.
    """

    def __init__(
        self,
        limits: Limits,
        numbers: Iterator[int],
        *,
        stages: int,
        batchable: bool,
        pads: bool,
        trimmable: bool,
        grid: int = 0,
    ) -> None:
        self._limits = limits
        self._budget = limits.context * limits.max_sessions
        self._stages = stages
        self._max_rows = limits.max_rows if batchable else 1
        self._pads = pads
        self._trimmable = trimmable
        self._grid = grid
        lanes = stages if batchable else max(stages, limits.max_sessions)
        self._lanes = deque(Lane(number) for number in range(lanes))
        self._prompts: deque[Prompts] = deque()
        self._pace = Pace(limits.chunk)
        self._waiting = Waiting()
        self._prefixes = Prefixes(limits.charge, trimmable=trimmable)
        self._ops: list[CacheOp] = []
        self._numbers = numbers
        self._steps_since_chunk = 0

    # --- sessions come and go -----------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        return sum(len(lane.slots()) for lane in self._lanes)

    @property
    def queued(self) -> int:
        return len(self._waiting)

    @property
    def tokens_held(self) -> int:
        """Tokens of KV that are set aside or kept; never more than the budget for longer than one step."""
        return self._used() + self._prefixes.charged

    def sessions(self) -> list[Session]:
        """Running, lane by lane, and waiting."""
        return [*(slot.session for lane in self._lanes for slot in lane.slots()), *self._waiting]

    def submit(self, session: Session) -> Session | None:
        """Tells whom it replaces, if anybody: when the queue is full, the client with the most waiting makes room.

        Raises BadRequest, ContextExceeded, or Overloaded when that is this one.
        """
        nothing_to_do = len(session.request.resume) >= session.request.max_tokens and not session.evaluates
        if not session.request.prompt or nothing_to_do:
            raise BadRequest("There is nothing to begin from, or nothing left to generate.")
        if session.longest > self._limits.context:
            raise ContextExceeded(
                f"This model's context is {self._limits.context} tokens; {len(session.request.prompt)} of prompt and "
                f"{session.request.max_tokens} to generate are {session.longest}.",
                hint="Send a shorter prompt or ask for fewer tokens.",
            )
        # A session that lost its ring has begun already: refusing it now would break its stream.
        replaced = None
        if not session.request.resume and len(self._waiting) >= self._limits.max_queue:
            replaced = self._waiting.crowding(session)
            if replaced is None:
                raise Overloaded(f"{len(self._waiting)} requests are waiting already.", hint="Try again in a moment.")
        self._waiting.add(session)
        return replaced

    def finish(self, session: Session, *, keep: bool) -> None:
        """It is done, or nobody wants it any more; `keep` its KV for later sessions if there is room."""
        session.finished = True
        if session.slot:
            session.slot.gone, session.slot.keep = True, keep
            self._clear_prompts()
        else:
            self._waiting.remove(session)

    def sequences(self) -> dict[int, tuple[int, ...]]:
        """The tokens of which the stages have KV, or have been sent what makes it, by the number that they know it by.

        None with a grid: how the KV was divided when it was computed is not known any more.
        """
        if self._grid:
            return {}
        slots = [slot for lane in self._lanes for slot in (*lane.kept(), *lane.slots())]
        return self._prefixes.all() | {slot.number: tuple(slot.session.tokens[: slot.sent]) for slot in slots}

    def restore(self, left: Mapping[int, Sequence[int]], held: Sequence[Held]) -> None:
        """Of what a ring before this one `left`, the stages have this, as prefixes: it need not be computed again."""
        here = {each.number: each.tokens for each in held}
        for number, tokens in left.items():
            if SHORTEST <= here.get(number, 0) <= len(tokens):
                self._prefixes.put(number, tokens[: here[number]])
            else:
                self._ops.append(Forget(number))  # some stages may have it

    # --- steps --------------------------------------------------------------------------------------------------------

    def next(self) -> Step | None:
        """The next step; None when all that could step is under way."""
        self._clear_lanes()
        self._make_room()
        self._admit()
        lane = next((lane for lane in self._lanes if lane.ready), None)
        prompts = next((prompts for prompts in self._prompts if prompts.ready), None)
        if lane and (prompts is None or self._steps_since_chunk < self._decoding):
            self._steps_since_chunk += 1
            return self._decode(lane)
        if prompts:
            self._steps_since_chunk = 0
            return self._prefill(prompts)
        return None

    @property
    def _decoding(self) -> int:
        return sum(1 for lane in self._lanes if lane.rows or lane.joining)

    def landed(self, step: Step, seconds: float) -> None:
        """A step came back, which held up others for so long; the caller has given its sessions their tokens."""
        for lane in self._lanes:
            if lane.number == step.lane:
                lane.busy = False
                self._pace.decode_s = seconds
        for prompts in list(self._prompts):
            if prompts.lane == step.lane:
                prompts.under_way -= 1
                prompts.token_s = self._pace.took(step.tokens, seconds)
                if step.samples and not prompts.gone:
                    self._join(prompts)
        for slot in step.rows if step.samples else ():
            self._waiting.charge(slot.session, 1)
        self._clear_prompts()

    def goes_on(self, step: Step) -> bool:
        """Whether the step's lane would step again with the same rows and nothing in between, if none of them ends."""
        lane = next((lane for lane in self._lanes if lane.number == step.lane), None)
        changes = lane is None or lane.joining or any(slot.gone for slot in lane.rows)
        others = self._waiting or self._prompts or self._ops
        return not changes and not others and self.tokens_held <= self._budget

    def go_on(self, step: Step) -> Step:
        """The lane's next step, which has begun already, after `step` has landed."""
        lane = next(lane for lane in self._lanes if lane.number == step.lane)
        for slot in lane.rows:
            slot.sent = len(slot.session.tokens)
            # Who hung up meanwhile never got the token that has begun: caches that can't go back hold one too many.
            slot.keep = slot.keep and self._trimmable
        lane.busy = True
        return replace(step, ops=(), tokens=())

    def take_ops(self) -> tuple[CacheOp, ...]:
        """Operations that belong to no step, to go with the next one or alone."""
        self._clear_lanes()
        ops, self._ops = tuple(self._ops), []
        return ops

    def _clear_lanes(self) -> None:
        """Free the rows of those that are gone; lanes that are under way do so with their next step."""
        for lane in self._lanes:
            if lane.idle and lane.crowded:
                lane.prepare(self._ops, self._keep_as)

    def _decode(self, lane: Lane) -> Step:
        self._lanes.remove(lane)
        self._lanes.append(lane)
        lane.prepare(self._ops, self._keep_as)
        ops = self.take_ops()
        tokens = tuple(tuple(slot.session.tokens[slot.sent :]) for slot in lane.rows)
        for slot in lane.rows:
            slot.sent = len(slot.session.tokens)
        lane.busy = True
        return Step(lane.number, ops, tuple(lane.rows), tokens, samples=True)

    def _prefill(self, prompts: Prompts) -> Step:
        self._prompts.remove(prompts)
        self._prompts.append(prompts)
        prompts.slots = part(prompts.slots, prompts.lane, self._ops, self._keep_as)
        prompts.begun = True
        prompts.under_way += 1
        tokens = prompts.chunk(self._chunk(prompts.token_s), self._grid)
        samples = not prompts.ready and prompts.slots[0].reading is None
        return Step(prompts.lane, self.take_ops(), tuple(prompts.slots), tokens, samples)

    def _chunk(self, token_s: float = 0.0) -> int:
        """Tokens for the next step of prompts, of which one takes so long if that is known."""
        decoding = self._decoding
        return self._pace.tokens(max(1, self._stages - decoding) if decoding else 0, token_s)

    def _join(self, prompts: Prompts) -> None:
        self._prompts.remove(prompts)
        prompts.home.arrive(prompts.slots, prompts.lane)
        if self._trimmable:
            return
        for row, slot in enumerate(prompts.slots):  # the only position to which a later session can go back
            number = None if slot.gone else self._keep_as(slot)
            self._ops += [] if number is None else [Keep(prompts.lane, row, number)]

    def _clear_prompts(self) -> None:
        """Drop the lanes of prompts that nobody waits for, once their last chunk is back."""
        for prompts in [prompts for prompts in self._prompts if prompts.gone and not prompts.under_way]:
            self._prompts.remove(prompts)
            prompts.home.coming = [slot for slot in prompts.home.coming if not slot.gone]
            part(prompts.slots, prompts.lane, self._ops, self._keep_as)

    # --- room ---------------------------------------------------------------------------------------------------------

    def _size(self, lane: Lane, guest: Session | None = None) -> int:
        """KV that a lane takes, as it is or with one more session: rows are padded to the longest."""
        reserved = [slot.session.reserved for slot in lane.slots()]
        if guest:
            reserved.append(guest.reserved)
        return len(reserved) * self._limits.charge(max(reserved)) if reserved else 0

    def _used(self) -> int:
        return sum(self._size(lane) for lane in self._lanes)

    def _admit(self) -> None:
        while session := self._next_in_line():
            while (home := self._home(session)) is None:
                if not self._yield_to(session):
                    return
            self._waiting.admit(session)
            self._begin(session, home)
            self._evict()

    def _home(self, session: Session) -> Lane | None:
        """The lane that the session makes least larger; None if there is no room."""
        homes = [lane for lane in self._lanes if len(lane.slots()) < self._max_rows]
        home = min(
            homes, key=lambda lane: (self._size(lane, session) - self._size(lane), len(lane.slots())), default=None
        )
        if home is None or self._used() - self._size(home) + self._size(home, session) > self._budget:
            return None
        return home

    def _yield_to(self, session: Session) -> bool:
        """Whether a place was freed for a session whose client has none: the last one of the client with the most, if
        that has several. Its KV is kept if there is room, and what is not is computed anew.
        """
        slots = [slot for lane in self._lanes for slot in lane.slots()]
        places = Counter(slot.session.request.client for slot in slots)
        client, most = max(places.items(), key=itemgetter(1), default=("", 0))
        if most < 2 or session.request.client in places:
            return False
        last = max((slot for slot in slots if slot.session.request.client == client), key=lambda slot: slot.number)
        last.gone = last.keep = True
        last.session.slot = None
        self._waiting.put_first(last.session)
        self._clear_prompts()
        return True

    def _next_in_line(self) -> Session | None:
        """Whose turn it is; while enough long prompts are run, only prompts that take one step have one."""
        long = sum(1 for prompts in self._prompts if prompts.slots[0].ahead > self._limits.chunk)
        return self._waiting.next(lambda session: long < LONG_PROMPTS or len(session.tokens) <= self._limits.chunk)

    def _begin(self, session: Session, home: Lane) -> None:
        # With a grid, no other session's KV is what this one would compute; who is evaluated needs every token computed.
        match = None if self._grid or session.evaluates else self._prefixes.best(session.tokens[:-1])
        reused = match.tokens if match else 0
        lane = next(self._numbers)
        slot = session.slot = Slot(session, lane, sent=reused, cached=reused)
        self._waiting.charge(session, slot.ahead)
        home.coming.append(slot)
        self._ops.append(Reuse(lane, match.prefix, reused) if match else Open(lane))
        if match and reused >= len(session.request.prompt):
            self._prefixes.use_last(match.prefix)  # most likely its own, from before its ring ended
        session.spared = 0 if session.request.resume else reused
        most = 0 if self._grid else self._chunk()
        for prompts in self._prompts:
            if prompts.home is home and prompts.takes(slot, most, pads=self._pads):
                prompts.slots.append(slot)
                self._ops.append(Merge(prompts.lane, lane))
                return
        self._prompts.append(Prompts(lane, home, [slot], reused))

    def _make_room(self) -> None:
        """Sessions have grown: let go of kept KV, then of the last session of the largest lane."""
        self._evict()
        while self._used() > self._budget and self.running > 1:
            last = max(self._lanes, key=self._size).slots()[-1]
            self._wait_again(last)
            self._clear_prompts()

    def _wait_again(self, slot: Slot) -> None:
        """The session gives up its KV and is next in line; its tokens will be replayed."""
        slot.gone = True
        slot.session.slot = None
        self._waiting.put_back(slot.session)

    def _evict(self, room: int = 0) -> None:
        """Let go of kept KV until the rest, and `room` tokens more, are within the budget."""
        while self._prefixes.full or self._used() + self._prefixes.charged + room > self._budget:
            number = self._prefixes.evict()
            if number is None:
                return
            self._ops.append(Forget(number))

    def _keep_as(self, slot: Slot) -> int | None:
        held = slot.session.tokens[: slot.sent]
        room = self._limits.charge(len(held))
        if self._grid or not self._prefixes.worth_adding(held) or self._used() + room > self._budget:
            return None
        self._evict(room)
        number = next(self._numbers)
        self._ops += [Forget(old) for old in self._prefixes.add(number, held)]
        return number
