"""Which sessions of a ring have a slot, and which KV the stages keep. Pure.

A session waits until there is KV for it (see room.py), in an order that is fair among clients; while LONG_PROMPTS long
prompts run, short ones overtake the others. It also waits while another one computes its beginning (see sharing.py).

KV is counted in tokens: the placement set aside `max_sessions` times the context. A session is charged for the tokens
that its caches have allocated, a lane for its longest row times its rows. The rest of the budget holds prefixes: KV of
finished sessions for later ones with the same beginning. When a session grows beyond the budget, the last one that
joined the largest lane goes back to the queue, and its tokens are replayed later. If the next session's client has no
slot, the client with the most slots gives up its last one in the same way.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

from node.core.errors import BadRequest, ContextExceeded, Overloaded, PippinError
from node.core.fair_queue import FairQueue
from node.core.frames import CacheOp, Drop, Forget, Held, Keep, Merge, Open, Restore, Reuse, SequenceId, Store, Take
from node.engine.plan import Plan
from node.kv.blocks import BLOCK, chain_of
from node.ring.flight import Flight
from node.ring.lane import Lane, free_rows
from node.ring.limits import RingLimits
from node.ring.prefill import ChunkSize, Prefill
from node.ring.prefixes import MIN_TOKENS, Match, Prefixes
from node.ring.restoring import MIN_STORED, Restoring, whole_tokens
from node.ring.room import Room
from node.ring.session import Session, Slot
from node.ring.sharing import most_shared, waits

LONG_PROMPTS = 4
"""Prompts of more than a step that run in turn; with more of them each would advance too slowly."""
EXTRA_LANES = 2
"""For sessions that are much longer or shorter than others: without them, rows are padded to the longest."""
MAX_PIXEL_BYTES = 2**30
"""Maximum bytes of the pictures of all requests of a ring."""
LONG_PREFIX = 2048
"""Tokens from which a prefix is not copied if it need not be; 0.25 GB of KV of an 8B model."""


class Admission:
    """The sessions of a ring, their lanes and prompts, the prefixes, and the operations that the stages' caches wait for."""

    def __init__(
        self, limits: RingLimits, plan: Plan, numbers: Iterator[SequenceId], flight: Flight, stages: int
    ) -> None:
        """See Scheduler."""
        self.limits = limits
        self.plan = plan
        self._flight = flight
        lanes = stages if plan.batchable else max(stages, limits.max_sessions)
        self.room = Room(limits, limits.max_rows if plan.batchable else 1, lanes)
        self.recomputed = 0
        """Tokens computed again for sessions that had lost their slot."""
        self.lanes = deque(Lane(number) for number in range(lanes + EXTRA_LANES * plan.batchable))
        """In the order in which they step next."""
        self.prefills: deque[Prefill] = deque()
        self.chunk_size = ChunkSize(limits.chunk, stages, limits.step_timeout_s, limits.token_s)
        self.waiting = FairQueue[Session]()
        self.prefixes = Prefixes(limits.charge, trimmable=plan.trimmable)
        self.restoring = Restoring(limits, numbers)
        self.ops: list[CacheOp] = []
        """Operations to send before the next step."""
        self._numbers = numbers

    @property
    def running(self) -> int:
        return sum(len(lane.slots()) for lane in self.lanes)

    @property
    def tokens_used(self) -> int:
        """Tokens of KV set aside for sessions and kept as prefixes; above the budget for one step at most."""
        return self._needed + self.prefixes.charged

    @property
    def _needed(self) -> int:
        """Those that are not kept for later."""
        return self.room.used(self.lanes) + self.restoring.tokens

    @property
    def prompt_chunk(self) -> int:
        """Most tokens of a prompt in one step, while a prompt is being computed; else 0."""
        return self.limits.chunk if any(prefill.begun for prefill in self.prefills) else 0

    def sessions(self) -> list[Session]:
        """The running ones, lane by lane, then the waiting ones."""
        return [*(slot.session for slot in self.slots()), *self.waiting]

    def submit(self, session: Session) -> Session | None:
        """Queue a session. If the queue is full, it may replace one of another client, which is returned.

        Raises BadRequest, ContextExceeded, or Overloaded when the queue is full and no session is replaced.
        """
        nothing_to_do = len(session.request.resume) >= session.request.max_tokens and not session.evaluate_request
        if not session.request.prompt or nothing_to_do:
            raise BadRequest("The prompt is empty, or there is nothing left to generate.")
        if session.max_length > self.limits.context:
            raise ContextExceeded(
                f"This model's context is {self.limits.context} tokens; {len(session.request.prompt)} of prompt and "
                f"{session.request.max_tokens} to generate are {session.max_length}.",
                hint="Send a shorter prompt or ask for fewer tokens.",
            )
        replaced = None
        # A session that resumes has begun on another ring: refusing it would break its stream.
        if not session.request.resume and len(self.waiting) >= self.limits.max_queue:
            replaced = self.waiting.replaceable(session, lambda each: not each.generated)
            if replaced is None:
                raise Overloaded(f"The queue of {len(self.waiting)} requests is full.", hint="Try again in a moment.")
        if session.pixel_bytes and not session.request.resume:
            with_pictures = [each for each in (session, *self.sessions()) if each.pixel_bytes]
            pixels = sum(each.pixel_bytes for each in with_pictures)
            own = sum(each.pixel_bytes for each in with_pictures if each.client == session.client)
            if pixels > MAX_PIXEL_BYTES or own > MAX_PIXEL_BYTES // 2:
                raise Overloaded(
                    f"Pictures of {pixels:,} bytes are here, {own:,} of them yours.", hint="Try again in a moment."
                )
        self.waiting.add(session)
        return replaced

    def fail(self, session: Session, error: PippinError) -> None:
        """End a session with an error, unless it has ended."""
        if not session.finished:
            session.events.put_nowait(error)
            self.finish(session, keep=False)

    def finish(self, session: Session, *, keep: bool) -> None:
        """Free a session's slot; `keep` its KV for later sessions if there is room. Nothing, if the session has ended."""
        if session.finished:
            return
        session.finished = True
        self.room.ended(session)
        if session.slot:
            session.slot.gone, session.slot.keep = True, keep
            self.clear_prefills()
        else:
            self.waiting.remove(session)

    def sequences(self) -> dict[SequenceId, tuple[int, ...]]:
        """The tokens of all sequences whose KV the stages have or are about to compute, by sequence number.

        Empty where the answer depends on chunks: nobody knows how the tokens were divided when the KV was computed.
        """
        if self.plan.chunked:
            return {}
        slots = [slot for lane in self.lanes for slot in (*lane.kept(), *lane.slots())]
        return self.prefixes.all() | {slot.number: tuple(slot.session.tokens[: slot.sent]) for slot in slots}

    def inherit(self, leftover: Mapping[SequenceId, Sequence[int]], held: Sequence[Held]) -> None:
        """Make prefixes of KV that an earlier ring left: `leftover` has its tokens, `held` what all stages have."""
        here = {each.number: each.tokens for each in held}
        for number, tokens in leftover.items():
            if MIN_TOKENS <= here.get(number, 0) <= len(tokens):
                self.prefixes.inherit(number, tokens[: here[number]])
            else:
                self.ops.append(Forget(number))  # some stages may still have its KV

    def pop_ops(self) -> tuple[CacheOp, ...]:
        """Operations to send with the next step or alone."""
        self.clear_lanes()
        ops, self.ops = tuple(self.ops), []
        return ops

    def idle_lanes(self) -> list[Lane]:
        """Those whose rows may change, as no step is in flight."""
        return [lane for lane in self.lanes if not self._flight.is_busy(lane.number)]

    def clear_lanes(self) -> None:
        """Free the rows of slots that are gone. A lane with a step in flight does so with its next step."""
        for lane in self.idle_lanes():
            if lane.is_stale:
                lane.prepare(self.ops, self.keep_as)

    def clear_prefills(self) -> None:
        """Drop the lanes of prompts whose slots are all gone, once their last chunk is back."""
        ended = [each for each in self.prefills if each.gone and not self._flight.is_busy(each.lane)]
        for prefill in ended:
            self.prefills.remove(prefill)
            prefill.home.prefilling = [slot for slot in prefill.home.prefilling if not slot.gone]
            free_rows(prefill.slots, prefill.lane, self.ops, self.keep_as)

    @property
    def decoding(self) -> int:
        return sum(1 for lane in self.lanes if lane.rows or lane.joining)

    def shrink(self) -> None:
        """Free KV for sessions that have grown: first prefixes, then the last slot of the largest lane."""
        self.evict()
        while self._needed > self.room.budget and self.running > (not self.restoring.tokens):
            last = max(self.lanes, key=self.room.size).slots()[-1]
            self._preempt(last, keep=False)
            self.waiting.put_back(last.session)

    def admit(self) -> None:
        while session := self._next_in_line():
            while (home := self.room.find(session, self.lanes, self.restoring.guests)) is None:
                if not self._preempt_for(session):
                    return
            match: Match | None = None
            shared: tuple[Slot, int] | None = None
            if may_reuse := self.may_reuse(session):
                shared = most_shared(session, self.slots()) if self.plan.trimmable else None
                match = self.prefixes.best(session.tokens[:-1])
            here = max(match.tokens if match else 0, shared[1] if shared else 0)
            # Else it waits for KV from disks before it begins.
            if not (may_reuse and self.restoring.ask(session, here, self.chunk_size.token_s)):
                self.waiting.admit(session)
                self._begin(session, home, match, shared, here)
            self.evict()

    def restored(self, asked: Restore, told: Restore) -> None:
        """The stages have looked for what they were `asked` for; `told`: what all of them have made a prefix of."""
        session = self.restoring.end(asked.number)
        known = session.tokens[: min(told.tokens, asked.tokens)]
        if len(known) < asked.least:
            self.ops.append(Forget(asked.number))  # some stages may have it
        elif told.longest == told.tokens:
            self.ops += [Forget(old) for old in self.prefixes.add(asked.number, known)]
        elif self.plan.trimmable:
            self.prefixes.inherit(asked.number, known)
        else:
            self.ops.append(Forget(asked.number))  # the stages have different states
        self.evict()

    def _preempt_for(self, session: Session) -> bool:
        """Free a slot for a session whose client has none: the last one of the client with the most, if it has several.

        The KV of that slot is kept if there is room. Returns whether a slot was freed.
        """
        slots = self.slots()
        counts = Counter(slot.session.request.client for slot in slots)
        client, most = max(counts.items(), key=itemgetter(1), default=("", 0))
        if most < 2 or session.request.client in counts:
            return False
        last = max((slot for slot in slots if slot.session.request.client == client), key=lambda slot: slot.lane)
        self._preempt(last, keep=True)
        self.waiting.put_first(last.session)
        return True

    def _preempt(self, slot: Slot, *, keep: bool) -> None:
        """Free a session's slot. The caller puts the session back into the queue."""
        slot.session.sought = False
        slot.gone, slot.keep, slot.session.slot, slot.session.lost = True, keep, None, slot.sent
        self.clear_prefills()

    def _next_in_line(self) -> Session | None:
        """The session to admit next: none whose beginning is being computed for another one, and while LONG_PROMPTS long
        prompts run, only one whose prompt needs a single step.
        """
        running = (prefill for prefill in self.prefills if prefill.begun or not prefill.is_blind)
        long = sum(1 for prefill in running if prefill.slots[0].unsent > self.limits.chunk)
        computing = [slot for prefill in self.prefills for slot in prefill.slots if not slot.gone]
        may_share = self.plan.trimmable  # at a position where the other one is not

        def may_begin(session: Session) -> bool:
            is_short = long < LONG_PROMPTS or len(session.tokens) <= self.limits.chunk
            return (
                is_short
                and not self.restoring.waits(session)
                and not (may_share and self.may_reuse(session) and waits(session, computing))
            )

        return self.waiting.next(may_begin)

    def _begin(
        self, session: Session, home: Lane, match: Match | None, shared: tuple[Slot, int] | None, reused: int
    ) -> None:
        lane = next(self._numbers)
        slot = session.slot = Slot(session, lane, lane, state_at=self._state_at(session), sent=reused, cached=reused)
        self.waiting.bill(session, slot.unsent)
        self.recomputed += max(0, session.lost - reused)
        session.lost = 0
        home.prefilling.append(slot)
        if match and match.tokens == reused:
            self._reuse(match, slot)
        elif shared:  # begin with a copy of the other one's first tokens
            slot.number = next(self._numbers)
            self.ops += [Keep(*self._row_of(shared[0]), slot.number, reused), Take(lane, slot.number)]
        else:
            self.ops.append(Open(lane))
        session.cached_tokens = 0 if session.request.resume else reused
        most = 0 if self.plan.chunked else self.chunk_size.shared(self.decoding)
        for prefill in self.prefills:
            if prefill.home is home and prefill.fits(slot, most, pads=self.plan.pads):
                prefill.slots.append(slot)
                self.ops.append(Merge(prefill.lane, lane))
                return
        self.prefills.append(Prefill(lane, home, [slot], reused))

    def _reuse(self, match: Match, slot: Slot) -> None:
        """Begin the slot's lane with the KV of a prefix.

        A session that continues a long prefix gets it without a copy, which would take time, and memory that is not
        set aside. Caches that can't go back have no first tokens for others, so there a prefix is always copied.
        """
        if match.tokens >= LONG_PREFIX and match.whole and match.exact and self.plan.trimmable:
            slot.number = match.prefix
            self.prefixes.drop(match.prefix)
            self.ops.append(Take(slot.lane, match.prefix))
        else:
            self.ops.append(Reuse(slot.lane, match.prefix, match.tokens))
            if match.tokens >= len(slot.session.request.prompt):
                self.prefixes.evict_next(match.prefix)  # most likely its own, computed on an earlier ring

    def may_reuse(self, session: Session) -> bool:
        """Whether it may begin with the KV of another one. An evaluation needs every token computed; and where the answer
        depends on chunks, that KV may differ.
        """
        return not self.plan.chunked and not session.evaluate_request

    def take_back(self, lane: Lane) -> None:
        """Take back the last token of a session that has the lane to itself, and all guesses after it: it is computed again."""
        slot, lane.again = lane.rows[0], True
        slot.sent, slot.number, slot.stored = len(slot.session.tokens) - 1, next(self._numbers), 0
        # Stages take single guesses back, and no token of which they were told that it is certain.
        self.ops += [Keep(lane.number, 0, slot.number, slot.sent), Drop(lane.number), Take(lane.number, slot.number)]

    def slots(self) -> list[Slot]:
        return [slot for lane in self.lanes for slot in lane.slots()]

    def _row_of(self, slot: Slot) -> tuple[SequenceId, int]:
        """Lane and row of a slot that is not gone, after the operations to come."""
        lanes = [(prefill.slots, prefill.lane) for prefill in self.prefills]
        for lane in self.lanes:
            lanes += [(lane.rows, lane.number), *lane.joining]
        return next((number, slots.index(slot)) for slots, number in lanes if slot in slots)

    def evict(self, more: int = 0) -> None:
        """Drop prefixes until everything and `more` tokens are within the budget."""
        while self.prefixes.full or self.tokens_used + more > self.room.budget:
            number = self.prefixes.evict(self.restoring.spared)
            if number is None:
                return
            self.ops.append(Forget(number))

    def keep_as(self, slot: Slot, lane: SequenceId, row: int) -> Sequence[CacheOp]:
        """See KeepAs."""
        tokens = slot.session.tokens[: slot.sent]
        size = self.limits.charge(len(tokens))
        is_wanted = not self.plan.chunked and self.prefixes.worth_adding(tokens)
        if not is_wanted or self._needed + sum(self.restoring.spared.values()) + size > self.room.budget:
            return ()
        self.evict(size)
        number = next(self._numbers)
        self.ops += [Forget(old) for old in self.prefixes.add(number, tokens)]
        return Keep(lane, row, number, slot.sent), *self._store(number, tokens)

    def _state_at(self, session: Session) -> int:
        """See Slot: after all of a prompt but its last tokens, as the next one may go on differently."""
        whole = whole_tokens(session)
        while session.axes and (end := session.axes.whole_end(0, whole)) != whole:
            whole = min(end, whole - 1) // BLOCK * BLOCK
        needs_state = not (self.plan.trimmable or self.plan.chunked or session.evaluate_request)
        return whole if self.limits.stored and needs_state and whole >= MIN_STORED else 0

    def begins_chunk(self, slot: Slot) -> None:
        """A chunk of a prompt begins: have the stages keep on their disks what can't be cut, if it is to be kept from here."""
        if slot.sent == slot.state_at > slot.cached and self.limits.stored:
            chain = chain_of(self.limits.stored, slot.session.tokens[: slot.sent])
            self.ops.append(Store(slot.number, chain, state=True))

    def computed(self, slot: Slot) -> None:
        """A step computes the KV of all tokens that are sent: have the stages keep new whole blocks on their disks."""
        if slot.sent // BLOCK > slot.stored and not slot.session.evaluate_request:
            slot.stored = slot.sent // BLOCK
            self.ops += self._store(slot.number, slot.session.tokens[: slot.sent])

    def _store(self, number: SequenceId, tokens: Sequence[int]) -> Sequence[CacheOp]:
        version, can_be_cut = self.limits.stored, self.plan.trimmable and not self.plan.chunked
        is_wanted = can_be_cut and len(tokens) >= MIN_STORED
        return (Store(number, chain_of(version, tokens)),) if version and is_wanted else ()
