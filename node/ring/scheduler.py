"""Decides the next step of a ring: which sessions share a lane, which prompt advances, and which KV is kept. Pure.

A session waits until there is KV for it (see room.py), in an order that is fair among clients; while LONG_PROMPTS long
prompts run, short ones overtake the others. It also waits while another one computes its beginning (see sharing.py).
Its prompt then runs in a lane of its own, in chunks (see prefill.py), or with others in one step when they are short; these
lanes take turns. Then it joins one of the decoding lanes, whose rows step together; there are as many lanes as stages, and more if
sessions differ much in length. Between two chunks every decoding lane steps once, and the size of a chunk limits how
long streams wait. A ring of one stage may begin a lane's next step before the tokens of the last one are read; a chunk comes after that step. While
nothing else waits, several steps of a lane are one job. While stages of a longer ring are idle, steps of guessed tokens
follow those in flight, in lanes of one row; they come last.

KV is counted in tokens: the placement set aside `max_sessions` times the context. A session is charged for the tokens
that its caches have allocated, a lane for its longest row times its rows. The rest of the budget holds prefixes: KV of
finished sessions for later ones with the same beginning. When a session grows beyond the budget, the last one that
joined the largest lane goes back to the queue, and its tokens are replayed later. If the next session's client has no
slot, the client with the most slots gives up its last one in the same way.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from node.core.errors import BadRequest, ContextExceeded, Overloaded, PippinError
from node.core.evaluation import Evaluation
from node.core.fair_queue import FairQueue
from node.core.frames import Back, CacheOp, Forget, Held, Keep, Merge, Open, Reuse, Take
from node.core.generation import TokenEvent
from node.core.guesses import Earlier
from node.engine.runner import Following, RowResult, Verdict
from node.ring.flight import Flight, Step
from node.ring.lane import Lane, free_rows
from node.ring.limits import RingLimits
from node.ring.prefill import ChunkSize, Prefill
from node.ring.prefixes import MIN_TOKENS, Match, Prefixes
from node.ring.room import Room
from node.ring.session import Session, Slot
from node.ring.sharing import most_shared, waits

LONG_PROMPTS = 4
"""Prompts of more than a step that run in turn; with more of them each would advance too slowly."""
MAX_STEPS = 16
"""Maximum number of steps of a lane in one job. KV is set aside for more: see HEADROOM."""
EXTRA_LANES = 2
"""For sessions that are much longer or shorter than others: without them, rows are padded to the longest."""
LONG_PREFIX = 2048
"""Tokens from which a prefix is not copied if it need not be; 0.25 GB of KV of an 8B model."""


class Scheduler:
    """All that the driver knows of its sessions and of the KV at the stages, and the order of their steps."""

    def __init__(
        self,
        limits: RingLimits,
        numbers: Iterator[int],
        *,
        stages: int,
        batchable: bool,
        pads: bool,
        trimmable: bool,
        grid: int = 0,
        ahead: bool = False,
        guesses: bool = False,
        draft_context: int = 0,
    ) -> None:
        """`numbers`: see node.ring.numbers. `stages`: number of the ring's stages. `batchable`: sessions of the model can
        share a lane. `pads`: prompts of different lengths can share a step. `trimmable`: caches can go back to an earlier
        position. `grid`: where the answer depends on how a prompt is divided, it is divided only at multiples of so many
        tokens; else 0. `ahead`: the ring can begin a lane's step before the tokens of the last one are read, and take it
        back. `guesses`: guess tokens while stages are idle. `draft_context`: tokens up to which a draft model guesses; 0: there
        is none.
        """
        self._limits = limits
        self.flight = Flight(stages)
        lanes = stages if batchable else max(stages, limits.max_sessions)
        self._room = Room(limits, limits.max_rows if batchable else 1, lanes)
        self._pads = pads
        self._trimmable = trimmable
        self._grid = grid
        self._ahead = ahead
        self._guesses = guesses
        self._draft_context = draft_context
        self.guessed = 0
        """Guesses that were compared with the token that was drawn."""
        self.guessed_right = 0
        self.recomputed = 0
        """Tokens computed again for sessions that had lost their slot."""
        self._lanes = deque(Lane(number) for number in range(lanes + EXTRA_LANES * batchable))
        self._prefills: deque[Prefill] = deque()
        self._chunk_size = ChunkSize(limits.chunk, stages)
        self._waiting = FairQueue[Session]()
        self._prefixes = Prefixes(limits.charge, trimmable=trimmable)
        self._ops: list[CacheOp] = []
        self._numbers = numbers
        self._steps_since_chunk = 0

    # --- sessions -----------------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        return sum(len(lane.slots()) for lane in self._lanes)

    @property
    def queued(self) -> int:
        return len(self._waiting)

    @property
    def tokens_held(self) -> int:
        """Tokens of KV set aside for sessions and kept as prefixes; above the budget for one step at most."""
        return self._used() + self._prefixes.charged

    @property
    def prompt_chunk(self) -> int:
        """Most tokens of a prompt in one step, while a prompt is being computed; else 0."""
        return self._limits.chunk if any(prefill.begun for prefill in self._prefills) else 0

    def sessions(self) -> list[Session]:
        """The running ones, lane by lane, then the waiting ones."""
        return [*(slot.session for lane in self._lanes for slot in lane.slots()), *self._waiting]

    def submit(self, session: Session) -> Session | None:
        """Queue a session. If the queue is full, it may replace one of another client, which is returned.

        Raises BadRequest, ContextExceeded, or Overloaded when the queue is full and no session is replaced.
        """
        nothing_to_do = len(session.request.resume) >= session.request.max_tokens and not session.evaluate_request
        if not session.request.prompt or nothing_to_do:
            raise BadRequest("The prompt is empty, or there is nothing left to generate.")
        if session.max_length > self._limits.context:
            raise ContextExceeded(
                f"This model's context is {self._limits.context} tokens; {len(session.request.prompt)} of prompt and "
                f"{session.request.max_tokens} to generate are {session.max_length}.",
                hint="Send a shorter prompt or ask for fewer tokens.",
            )
        # A session that resumes has begun on another ring: refusing it would break its stream.
        replaced = None
        if not session.request.resume and len(self._waiting) >= self._limits.max_queue:
            replaced = self._waiting.replaceable(session, lambda each: not each.generated)
            if replaced is None:
                raise Overloaded(f"The queue of {len(self._waiting)} requests is full.", hint="Try again in a moment.")
        self._waiting.add(session)
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
        self._room.ended(session)
        if session.slot:
            session.slot.gone, session.slot.keep = True, keep
            self._clear_prefills()
        else:
            self._waiting.remove(session)

    def sequences(self) -> dict[int, tuple[int, ...]]:
        """The tokens of all sequences whose KV the stages have or are about to compute, by sequence number.

        Empty with a grid: nobody knows how the tokens were divided when the KV was computed.
        """
        if self._grid:
            return {}
        slots = [slot for lane in self._lanes for slot in (*lane.kept(), *lane.slots())]
        return self._prefixes.all() | {slot.number: tuple(slot.session.tokens[: slot.sent]) for slot in slots}

    def inherit(self, leftover: Mapping[int, Sequence[int]], held: Sequence[Held]) -> None:
        """Make prefixes of KV that an earlier ring left: `leftover` has its tokens, `held` what all stages have."""
        here = {each.number: each.tokens for each in held}
        for number, tokens in leftover.items():
            if MIN_TOKENS <= here.get(number, 0) <= len(tokens):
                self._prefixes.inherit(number, tokens[: here[number]])
            else:
                self._ops.append(Forget(number))  # some stages may still have its KV

    # --- steps --------------------------------------------------------------------------------------------------------

    def next(self) -> Step | None:
        """The next step; None when there is none to send now."""
        self._clear_lanes()
        self._make_room()
        self._admit()
        lane = next((lane for lane in self._idle_lanes() if lane.is_live), None)
        prefill = next((prefill for prefill in self._prefills if prefill.ready), None)
        if lane and (prefill is None or lane.ahead or self._steps_since_chunk < self._decoding):
            self._steps_since_chunk += 1
            return self._decode(lane)
        if prefill and (self.flight.has_idle_stage or self._steps_since_chunk >= self._decoding):
            self._steps_since_chunk = 0
            return self._run_chunk(prefill)
        return None

    def guess(self) -> Step | None:
        """A step of a token that a session may draw next, if a stage is idle, for when `next` has no step.

        It is computed as it will be if it turns out right; if not, all stages take it back.
        """
        if self.flight.room < 1 or not self._may_guess:
            return None
        for lane in sorted(self._lanes, key=lambda lane: len(self.flight.guesses(lane.number))):
            if not self.flight.is_landing(lane.number) and (token := self._next_guess(lane)) is not None:
                self.flight.sent(step := self._guess_step(lane, token))
                return step
        return None

    @property
    def _may_guess(self) -> bool:
        """Whether there is memory for one more guess.

        Caches that can't be trimmed keep or copy their states for a guess, which takes up to the memory of a session.
        """
        room = (self.flight.guessed + 1) * self._limits.context
        return self._guesses and (self._trimmable or self.tokens_held + room <= self._room.budget)

    def _may_follow(self, lane: Lane) -> bool:
        """Whether a step of a guessed token may be sent behind the one in flight."""
        return self.flight.is_busy(lane.number) and not lane.ahead and lane.only is not None

    def _next_guess(self, lane: Lane) -> int | None:
        """The token that may come after the guesses in flight; None without one."""
        return (
            lane.only.session.guess(self.flight.guesses(lane.number)) if self._may_follow(lane) and lane.only else None
        )

    def _guess_step(self, lane: Lane, token: int) -> Step:
        unverified = len(self.flight.guesses(lane.number)) + 1
        return Step(lane.number, (), tuple(lane.rows), ((token,),), samples=True, unverified=unverified)

    def to_draft(self) -> tuple[Slot, list[int]] | None:
        """A session, and the guesses at its next tokens after which the draft model is to be asked; None if there is no
        such session, or the ring has no room for guesses.
        """
        room = self.flight.most_guesses
        if not self._guesses or room < 1 or self._waiting or self._prefills:
            return None
        # The oldest session first, as the draft model follows one at a time.
        for lane in sorted(self._lanes, key=lambda lane: lane.rows[0].lane if lane.rows else 0):
            slot = lane.only
            if not slot or not self._may_follow(lane) or self.flight.is_landing(lane.number):
                continue
            # One more than there is room for: the job that finds the first guess right begins the step of the last one.
            guessed = slot.session.guesses_to_draft_after(self.flight.guesses(lane.number), room + 1)
            if guessed is not None and len(slot.session.tokens) + len(guessed) < self._draft_context:
                return slot, guessed
        return None

    @property
    def _decoding(self) -> int:
        return sum(1 for lane in self._lanes if lane.rows or lane.joining)

    def returned(self, step: Step) -> Following | None:
        """A step's frame came back. Returns what may follow it in its lane; None if its results are of no use."""
        if not self.flight.returned(step):
            return None
        lane = self._lane(step)
        if lane is None:
            return Following()
        guesses = self.flight.guesses(lane.number)
        others = self._waiting or self._prefills
        # The step itself has left the stages, so one more guess may follow.
        may_follow = guesses and self.flight.room >= 0 and self._may_guess and not others
        return Following(guesses, self._next_guess(lane) if may_follow else None, self._can_chain(lane))

    def landed(self, step: Step, verdict: Verdict, seconds: float) -> Step | None:
        """The results of a step are computed; other steps waited for `seconds`. Each session gets its result.

        Returns the step that the job has begun, if any: it is to be sent.
        """
        for slot, result in zip(step.rows, verdict.results, strict=bool(verdict.results)):
            if not slot.gone:
                self._deliver(slot, result)
        lane = self._lane(step)
        if lane:
            begun = self._judge(lane, step, verdict)
            self._chunk_size.decode_s = seconds
        else:
            self.flight.landed(step)
            begun = None
        for prefill in list(self._prefills):
            if prefill.lane == step.lane:
                prefill.token_s = self._chunk_size.took(step.tokens, seconds)
                if step.samples and not prefill.gone:
                    self._join(prefill)
        for slot in step.rows if step.samples else ():
            self._waiting.bill(slot.session, 1)
        self._clear_prefills()
        return begun

    def _deliver(self, slot: Slot, result: RowResult) -> None:
        """Give a row's result to its session."""
        session = slot.session
        match slot.take(result):
            case PippinError() as error:
                self.fail(session, error)
            case Evaluation() as evaluation:
                session.events.put_nowait(evaluation)
                # A client often generates from the text that it had scored.
                self.finish(session, keep=bool(evaluation.scores))
            case TokenEvent() as event:
                session.events.put_nowait(event)
                if event.finish:
                    self.finish(session, keep=True)
            case None:
                pass

    def _judge(self, lane: Lane, step: Step, verdict: Verdict) -> Step | None:
        """Keep the guesses behind a step or take them back. Returns the lane's step that was begun with its results."""
        begun = None
        if verdict.guess is not None:
            begun = self._guess_step(lane, verdict.guess)
        elif verdict.begun:
            begun = replace(step, ops=(), tokens=(), unverified=0)
        needed = not lane.rows[0].gone
        right = verdict.right if needed else 0
        wrong = self.flight.landed(step, right, begun)
        self.guessed += right or (wrong > 0 and needed)
        self.guessed_right += right
        chained = begun is not None and not begun.unverified
        # If the job has begun the right step, it has taken the guesses back, and that step's frame says so.
        self._ops += [Back(lane.number, wrong)] if wrong and not chained else []
        for slot in lane.rows if chained or right else ():
            slot.sent = len(slot.session.tokens)
            # A slot that has gone meanwhile lacks the token of this step: caches that can't go back have one too many.
            slot.keep = slot.keep and self._trimmable
        return begun

    def _can_chain(self, lane: Lane) -> bool:
        """Whether the lane's next step can follow at once, with the same rows and no operation but to take guesses back."""
        changes = lane.joining or any(slot.gone for slot in lane.rows)
        others = self._waiting or self._prefills or self._ops
        ends = any(slot.session.generated + 1 >= slot.session.request.max_tokens for slot in lane.rows)
        return not changes and not others and not ends and self.tokens_held <= self._room.budget

    def take_ops(self) -> tuple[CacheOp, ...]:
        """Operations to send with the next step or alone."""
        self._clear_lanes()
        ops, self._ops = tuple(self._ops), []
        return ops

    def _lane(self, step: Step) -> Lane | None:
        return next((lane for lane in self._lanes if lane.number == step.lane), None)

    def _clear_lanes(self) -> None:
        """Free the rows of slots that are gone. A lane with a step in flight does so with its next step."""
        for lane in self._idle_lanes():
            if lane.is_stale:
                lane.prepare(self._ops, self._keep_as)

    def _idle_lanes(self) -> list[Lane]:
        """Those whose rows may change, as no step is in flight."""
        return [lane for lane in self._lanes if not self.flight.is_busy(lane.number)]

    def _decode(self, lane: Lane) -> Step:
        self._lanes.remove(lane)
        self._lanes.append(lane)
        lane.prepare(self._ops, self._keep_as)
        ops = self.take_ops()
        tokens = tuple(tuple(slot.session.tokens[slot.sent :]) for slot in lane.rows)
        for slot in lane.rows:
            slot.sent = len(slot.session.tokens)
        ahead = self._steps_ahead(lane)
        lane.ahead = ahead > 0
        self.flight.sent(step := Step(lane.number, ops, tuple(lane.rows), tokens, samples=True, ahead=ahead))
        return step

    def _steps_ahead(self, lane: Lane) -> int:
        """See Step.ahead: 0 while another session is about to join the lane, 1 while other sessions wait."""
        if not self._ahead or self._prefills:
            return 0
        most = MAX_STEPS if self._decoding == 1 and not self._waiting else 1
        return min(most, *(slot.session.tokens_ahead for slot in lane.rows))

    def _run_chunk(self, prefill: Prefill) -> Step:
        self._prefills.remove(prefill)
        self._prefills.append(prefill)
        prefill.slots = free_rows(prefill.slots, prefill.lane, self._ops, self._keep_as)
        prefill.begun = True
        is_alone = len(self._prefills) == 1 and not (self._decoding or self._waiting)
        tokens = prefill.chunk(self._chunk_size.of(prefill, self._decoding, is_alone=is_alone), self._grid)
        samples = not prefill.ready and prefill.slots[0].evaluation is None
        self.flight.sent(step := Step(prefill.lane, self.take_ops(), tuple(prefill.slots), tokens, samples))
        return step

    def _join(self, prefill: Prefill) -> None:
        self._prefills.remove(prefill)
        prefill.home.join(prefill.slots, prefill.lane)
        if self._trimmable:
            return
        for row, slot in enumerate(prefill.slots):  # later sessions can go back to no other position
            number = None if slot.gone else self._keep_as(slot)
            self._ops += [] if number is None else [Keep(prefill.lane, row, number, slot.sent)]

    def _clear_prefills(self) -> None:
        """Drop the lanes of prompts whose slots are all gone, once their last chunk is back."""
        ended = [each for each in self._prefills if each.gone and not self.flight.is_busy(each.lane)]
        for prefill in ended:
            self._prefills.remove(prefill)
            prefill.home.prefilling = [slot for slot in prefill.home.prefilling if not slot.gone]
            free_rows(prefill.slots, prefill.lane, self._ops, self._keep_as)

    # --- room ---------------------------------------------------------------------------------------------------------

    def _used(self) -> int:
        return self._room.used(self._lanes)

    def _admit(self) -> None:
        while session := self._next_in_line():
            while (home := self._room.find(session, self._lanes)) is None:
                if not self._preempt_for(session):
                    return
            self._waiting.admit(session)
            self._begin(session, home)
            self._evict()

    def _preempt_for(self, session: Session) -> bool:
        """Free a slot for a session whose client has none: the last one of the client with the most, if it has several.

        The KV of that slot is kept if there is room. Returns whether a slot was freed.
        """
        slots = self._slots()
        counts = Counter(slot.session.request.client for slot in slots)
        client, most = max(counts.items(), key=itemgetter(1), default=("", 0))
        if most < 2 or session.request.client in counts:
            return False
        last = max((slot for slot in slots if slot.session.request.client == client), key=lambda slot: slot.lane)
        self._preempt(last, keep=True)
        self._waiting.put_first(last.session)
        return True

    def _preempt(self, slot: Slot, *, keep: bool) -> None:
        """Take a session's slot. The caller puts the session back into the queue."""
        slot.gone, slot.keep, slot.session.slot, slot.session.lost = True, keep, None, slot.sent
        self._clear_prefills()

    def _next_in_line(self) -> Session | None:
        """The session to admit next: none whose beginning is being computed for another one, and while LONG_PROMPTS long
        prompts run, only one whose prompt takes a single step.
        """
        long = sum(1 for prefill in self._prefills if prefill.slots[0].unsent > self._limits.chunk)
        computing = [slot for prefill in self._prefills for slot in prefill.slots if not slot.gone]

        def may_begin(session: Session) -> bool:
            is_short = long < LONG_PROMPTS or len(session.tokens) <= self._limits.chunk
            return is_short and not (self._may_share(session) and waits(session, computing))

        return self._waiting.next(may_begin)

    def _begin(self, session: Session, home: Lane) -> None:
        reuses = not self._grid and not session.evaluate_request
        match = self._prefixes.best(session.tokens[:-1]) if reuses else None
        shared = most_shared(session, self._slots()) if self._may_share(session) else None
        reused = max(match.tokens if match else 0, shared[1] if shared else 0)
        session.earlier = Earlier(match.tokens, self._prefixes.rest(match)) if match else None
        lane = next(self._numbers)
        slot = session.slot = Slot(session, lane, lane, sent=reused, cached=reused)
        self._waiting.bill(session, slot.unsent)
        self.recomputed += max(0, session.lost - reused)
        session.lost = 0
        home.prefilling.append(slot)
        if match and match.tokens == reused:
            self._reuse(match, slot)
        elif shared:
            self._share(shared[0], slot)
        else:
            self._ops.append(Open(lane))
        session.cached_tokens = 0 if session.request.resume else reused
        most = 0 if self._grid else self._chunk_size.shared(self._decoding)
        for prefill in self._prefills:
            if prefill.home is home and prefill.fits(slot, most, pads=self._pads):
                prefill.slots.append(slot)
                self._ops.append(Merge(prefill.lane, lane))
                return
        self._prefills.append(Prefill(lane, home, [slot], reused))

    def _reuse(self, match: Match, slot: Slot) -> None:
        """Begin the slot's lane with the KV of a prefix.

        A session that continues a long prefix gets it without a copy, which would take time, and memory that is not
        set aside. Caches that can't go back have no first tokens for others, so there a prefix is always copied.
        """
        if match.tokens >= LONG_PREFIX and match.whole and match.exact and self._trimmable:
            slot.number = match.prefix
            self._prefixes.drop(match.prefix)
            self._ops.append(Take(slot.lane, match.prefix))
        else:
            self._ops.append(Reuse(slot.lane, match.prefix, match.tokens))
            if match.tokens >= len(slot.session.request.prompt):
                self._prefixes.evict_next(match.prefix)  # most likely its own, computed on an earlier ring

    def _may_share(self, session: Session) -> bool:
        """Whether it may begin with the KV of one that runs, at a position where that one is not.

        With a grid, the KV of another session may differ; an evaluation needs every token computed.
        """
        return self._trimmable and not self._grid and not session.evaluate_request

    def _share(self, other: Slot, slot: Slot) -> None:
        """Begin the slot's lane with a copy of another one's first tokens."""
        slot.number = next(self._numbers)
        lane, row = self._row_of(other)
        self._ops += [Keep(lane, row, slot.number, slot.cached), Take(slot.lane, slot.number)]

    def _slots(self) -> list[Slot]:
        return [slot for lane in self._lanes for slot in lane.slots()]

    def _row_of(self, slot: Slot) -> tuple[int, int]:
        """Lane and row of a slot that is not gone, after the operations to come."""
        lanes = [(prefill.slots, prefill.lane) for prefill in self._prefills]
        for lane in self._lanes:
            lanes += [(lane.rows, lane.number), *lane.joining]
        return next((number, slots.index(slot)) for slots, number in lanes if slot in slots)

    def _make_room(self) -> None:
        """Free KV for sessions that have grown: first prefixes, then the last slot of the largest lane."""
        self._evict()
        while self._used() > self._room.budget and self.running > 1:
            last = max(self._lanes, key=self._room.size).slots()[-1]
            self._preempt(last, keep=False)
            self._waiting.put_back(last.session)

    def _evict(self, room: int = 0) -> None:
        """Drop prefixes until everything and `room` more tokens are within the budget."""
        while self._prefixes.full or self._used() + self._prefixes.charged + room > self._room.budget:
            number = self._prefixes.evict()
            if number is None:
                return
            self._ops.append(Forget(number))

    def _keep_as(self, slot: Slot) -> int | None:
        held = slot.session.tokens[: slot.sent]
        room = self._limits.charge(len(held))
        if self._grid or not self._prefixes.worth_adding(held) or self._used() + room > self._room.budget:
            return None
        self._evict(room)
        number = next(self._numbers)
        self._ops += [Forget(old) for old in self._prefixes.add(number, held)]
        return number
