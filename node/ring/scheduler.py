"""Decides the next step of a ring: which prompt advances, which lane steps, and which guess follows. Pure.

A session that has been admitted (see admission.py) runs its prompt in a lane of its own, in chunks (see prefill.py), or
with others in one step when they are short; these lanes take turns. Then it joins one of the decoding lanes, whose rows
step together; there are as many lanes as stages, and more if sessions differ much in length. Between two chunks every
decoding lane steps once, and the size of a chunk limits how long streams wait. A ring of one stage may begin a lane's
next step before the tokens of the last one are read; a chunk comes after that step. While nothing else waits, several
steps of a lane are one job. In lanes of one row, guesses follow the certain token in its step where this pays (see
frame_rows.py); and while stages are idle, steps of guesses follow those in flight, which come last.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from node.core.errors import PippinError
from node.core.evaluation import Evaluation
from node.core.frames import Back, SequenceId
from node.core.generation import PromptProgress, TokenEvent
from node.core.row_family import RowFamily
from node.engine.plan import Plan
from node.engine.sampling import Sampled
from node.engine.verdict import Following, RowResult, Verdict
from node.ring.admission import Admission
from node.ring.alone import AloneStream
from node.ring.filling import Filling
from node.ring.flight import Flight, Step
from node.ring.guess_gain import Round
from node.ring.lane import Lane, free_rows
from node.ring.limits import RingLimits
from node.ring.prefill import Prefill
from node.ring.session import Session, Slot

MAX_STEPS = 16
"""Maximum number of steps of a lane in one job. KV is set aside for more: see HEADROOM."""


class Scheduler:
    """The order of a ring's steps."""

    def __init__(
        self, limits: RingLimits, plan: Plan, numbers: Iterator[SequenceId], stages: int, *, guesses: bool = True
    ) -> None:
        """`plan`: of the model. `numbers`: see node.ring.lane.sequence_numbers. `stages`: number of the ring's stages.
        `guesses`: whether tokens may be guessed.
        """
        self.flight = Flight(stages)
        self._stages = stages
        self._guesses = guesses
        self.filling = Filling(stages, guesses=guesses)
        self.admission = Admission(limits, plan, numbers, self.flight, stages)
        self._begins_ahead = stages == 1 and plan.steps_back
        """Whether a lane's step can begin before the tokens of the last one are read."""
        self.guessed = 0
        """Guesses that were compared with the token that was drawn."""
        self.guessed_right = 0
        self.alone = AloneStream()
        self._steps_since_chunk = 0
        self._wasted_s = 0.0
        """Seconds of wrong guesses, and of guesses for which the next step waits, since the last step that came back."""

    def keep_to(self, family: RowFamily) -> None:
        """How many tokens the steps of a single session have, the same for as long as the ring lives; later ones only tell what
        these cost by then.
        """
        # Where caches can't be trimmed, each step can be taken back as a whole only.
        if self.admission.plan.trimmable:
            self.filling.family = family

    def next(self) -> Step | None:
        """The next step; None when there is none to send now."""
        self.admission.clear_lanes()
        self.admission.shrink()
        self.admission.admit()
        lane = next((lane for lane in self.admission.idle_lanes() if lane.is_live), None)
        ready = (prefill for prefill in self.admission.prefills if prefill.ready and not prefill.is_blind)
        prefill = next(ready, None)
        if lane and (prefill is None or lane.ahead or self._steps_since_chunk < self.admission.decoding):
            self._steps_since_chunk += 1
            return self._decode(lane)
        if prefill and (self.flight.has_idle_stage or self._steps_since_chunk >= self.admission.decoding):
            self._steps_since_chunk = 0
            return self._run_chunk(prefill)
        return None

    def guess(self, *, whole: bool = False) -> Step | None:
        """A step of tokens that a session may draw next, if a stage is idle, for when `next` has no step. `whole`: only one without
        padding, behind which others can follow.

        It is computed as it will be if it turns out right; if not, all stages take it back.
        """
        if self.flight.free_stages < 1 or not self._may_guess:
            return None
        for lane, slot in sorted(self._guessing(), key=lambda pair: len(self.flight.guesses(pair[0].number))):
            tokens, padding = self.filling.next_tokens(
                slot.session, self._in_flight, guessed=self.flight.guesses(lane.number)
            )
            if tokens and not (whole and padding):
                self.flight.sent(step := self._guess_step(lane, tokens, padding))
                return step
        return None

    @property
    def _in_flight(self) -> int:
        """Steps of one session that are in the ring at once."""
        return max(1, self._stages // max(1, self.admission.decoding))

    def _guessing(self) -> list[tuple[Lane, Slot]]:
        """The lanes of a single session, and its slot, whose step is on its way, and may be followed by guesses."""
        flight = self.flight
        busy = [lane for lane in self.admission.lanes if flight.is_busy(lane.number)]
        lanes = [lane for lane in busy if not (flight.is_landing(lane.number) or flight.is_padded(lane.number))]
        return [(lane, slot) for lane in lanes if (slot := lane.only)]

    @property
    def _may_guess(self) -> bool:
        """Whether there may be one more step of guesses, and memory for it.

        Caches that can't be trimmed keep or copy their states for a guess, which needs up to the memory of a session.
        """
        admission = self.admission
        size = (self.flight.guessed + 1) * admission.limits.context
        has_room = admission.plan.trimmable or admission.tokens_used + size <= admission.room.budget
        return self._guesses and has_room

    def _guess_step(self, lane: Lane, tokens: Sequence[int], padding: int = 0) -> Step:
        unverified = len(self.flight.guesses(lane.number)) + len(tokens)
        rows = tuple(lane.rows)
        return Step(lane.number, (), rows, (tuple(tokens),), samples=True, unverified=unverified, padding=padding)

    def leads(self, slot: Slot) -> bool:
        """Whether its session is the oldest one of text alone: a draft model, or an MTP layer, follows one at a time, the oldest."""
        if slot.session.request.pictures:
            return False
        slots = (each for lane in self.admission.lanes for each in lane.slots())
        others = (each for each in slots if not each.session.request.pictures)
        return not slot.gone and all(slot.lane <= other.lane for other in others)

    def to_fill(self) -> tuple[Session, list[int]] | None:
        """A session whose next step is to wait for a guess of the draft model, and the guesses at its tokens after which that one
        is to be asked first; None if the next step is not to wait.
        """
        lane = next((lane for lane in self.admission.idle_lanes() if lane.is_live), None)
        slot = lane.only if lane and not (lane.ahead or lane.again) else None
        if slot is None or self.admission.waiting or self.admission.prefills or not self.leads(slot):
            return None
        guessed = self.filling.awaited_after(slot.session, self._in_flight)
        return None if guessed is None else (slot.session, guessed)

    def waited(self, seconds: float, *, drawn: bool) -> None:
        """The next step has waited so long for a source of guesses, which has `drawn` one, or has computed a part of a prompt."""
        if self._stages == 1:  # else steps behind it may have come back meanwhile, and their seconds count
            self._wasted_s += seconds
        if drawn:
            self.filling.note_guess(seconds)

    def to_draft(self, context: int, beyond: int) -> tuple[Session, list[int]] | None:
        """A session, and the guesses at its next tokens after which the draft model is to be asked; None if there is no
        such session, or no guess may be in flight. `context`, `beyond`: see GuessSource in node.ring.guessing.
        """
        most_steps = self.flight.most_guessed
        if most_steps < 1 or self.admission.waiting or self.admission.prefills:
            return None
        for lane, slot in self._guessing():
            if not self.leads(slot) or slot.session.guesser.draft_rate < self.filling.gain.least_rate:
                continue
            # `beyond` is one where the job that finds the first guess right is to begin one step more than may be in flight.
            most = self.flight.own_guesses(lane.number) + (most_steps + beyond) * self.filling.family.costs[-1][0]
            guessed = slot.session.guesses_to_draft_after(self.flight.guesses(lane.number), most)
            if guessed is not None and len(slot.session.tokens) + len(guessed) < context:
                return slot.session, guessed
        return None

    def returned(self, step: Step, seconds: float) -> Following | None:
        """A step's frame came back, for which others waited for `seconds`. Returns what may follow it in its lane; None if its results
        are of no use.
        """
        if not self.flight.returned(step):
            self._wasted_s += seconds
            return None
        lane = self._lane(step)
        if lane is None:
            return Following()
        guesses, slot = self.flight.guesses(lane.number), lane.only
        others = self.admission.waiting or self.admission.prefills
        # The step itself has left the stages, so one more may follow those behind it.
        is_followed = len(guesses) > len(step.guesses)
        may_follow = is_followed and not self.flight.is_padded(step.lane) and self.flight.free_stages >= 0
        may_follow = may_follow and self._may_guess and not others
        may_chain = self._can_chain(lane, len(step.guesses))
        if not (slot and may_follow):
            return Following(guesses, (), may_chain)
        tokens, padding = self.filling.next_tokens(slot.session, self._in_flight, guessed=guesses)
        return Following(guesses, () if padding else tokens, may_chain)

    def landed(self, step: Step, verdict: Verdict, seconds: float) -> Step | None:
        """The results of a step are computed; other steps waited for `seconds`. Each session gets its result.

        Returns the step that the job has begun, if any: it is to be sent.
        """
        begun, delivered, foretold = None, 0, 0
        round_s, self._wasted_s = seconds + self._wasted_s, 0.0
        lane = self._lane(step)
        # Of a single session each token is compared with the guess at it.
        is_alone = lane is not None and lane.only is not None and self.filling.follows
        is_alone = is_alone and self.admission.running + len(self.admission.waiting) == 1
        for slot, result in step.pairs(verdict.results):
            if not slot.gone:
                foretold += is_alone and isinstance(result, Sampled) and slot.session.next_guess(()) == result.token
                self._deliver(slot, result)
                delivered += 1
        if is_alone:
            self.alone.note(delivered, foretold, round_s)
            self.filling.note_round(step, round_s)
        if lane:
            begun = self._settle(lane, step, verdict, delivered)
            self.filling.note_step(step, seconds)
            self.admission.chunk_size.decode_s = seconds
        else:
            self.flight.landed(step)
        for prefill in [each for each in self.admission.prefills if each.lane == step.lane]:
            self._chunk_landed(prefill, step, seconds)
        for slot in step.rows if step.samples else ():
            self.admission.waiting.bill(slot.session, max(1, len(verdict.results) // len(step.rows)))
        self.admission.clear_prefills()
        return begun

    def _chunk_landed(self, prefill: Prefill, step: Step, seconds: float) -> None:
        """Tell how far a prompt is, or have it join its lane after the last chunk."""
        tokens = len(step.tokens[0])
        prefill.token_s = self.admission.chunk_size.note(step.tokens, seconds)
        first, *others = prefill.slots
        # Sources of guesses learn as many tokens of a prompt as have been computed, so that they know it with the first token
        # of its answer: if the session may guess then, as it would have a lane to itself.
        if self.filling.follows and not (others or first.evaluation) and prefill.home.slots() == prefill.slots:
            first.session.learn(tokens)
        if not step.samples:
            for slot in step.rows:
                if not (slot.gone or slot.evaluation):
                    prefill.progress = PromptProgress(step.begin + tokens, len(slot.session.tokens))
                    slot.session.events.put_nowait(prefill.progress)
        elif not prefill.gone:
            self.admission.prefills.remove(prefill)
            prefill.home.join(prefill.slots, prefill.lane)
            if not self.admission.plan.trimmable:  # later sessions can go back to no other position
                for row, slot in enumerate(prefill.slots):
                    self.admission.ops += () if slot.gone else self.admission.keep_as(slot, prefill.lane, row)

    def _deliver(self, slot: Slot, result: RowResult) -> None:
        if (event := slot.accept(result)) is None:
            return
        slot.session.events.put_nowait(event)
        match event:
            case PippinError():
                self.admission.finish(slot.session, keep=False)
            case Evaluation():  # a client often generates from the text that it had scored
                self.admission.finish(slot.session, keep=bool(event.scores))
            case TokenEvent() if event.finish:
                self.admission.finish(slot.session, keep=True)

    def _settle(self, lane: Lane, step: Step, verdict: Verdict, delivered: int) -> Step | None:
        """Keep the guesses of a step and behind it, or take them back. `delivered`: number of results that sessions got.
        Returns the lane's step that was begun with the results.
        """
        begun, chained = None, verdict.begun is not None and not verdict.guesses
        if verdict.guesses:
            begun = self._guess_step(lane, verdict.guesses)
        elif chained:
            begun = replace(step, ops=(), tokens=(), unverified=0, padding=0)
        own, needed = len(step.guesses), not lane.rows[0].gone
        is_followed = len(self.flight.guesses(lane.number)) > own
        # Of a session that has gone only what it got is kept, and nothing behind the step.
        right = verdict.right if needed else min(verdict.right, delivered, own)
        wrong = self.flight.landed(step, right, begun)
        after = Round.RIGHT if right > own else Round.WRONG if is_followed else Round.PLAIN
        self.filling.gain.begin(after if right > own or chained else None)
        self.guessed += right + (wrong > step.padding and needed and not verdict.again)
        self.guessed_right += right
        if verdict.again:
            self.admission.take_back(lane)
            return None
        # If the job has begun the right step, it has taken the guesses back, and that step's frame says so.
        self.admission.ops += [Back(lane.number, wrong)] if wrong and not chained else []
        for slot in lane.rows if chained or right else ():
            slot.sent = len(slot.session.tokens) if chained else slot.sent + right
            self.admission.computed(slot)
            # A slot that has gone meanwhile lacks the token of this step: caches that can't go back have one too many.
            slot.keep = slot.keep and self.admission.plan.trimmable
        return begun

    def _can_chain(self, lane: Lane, guesses: int) -> bool:
        """Whether the lane's next step can follow at once, with the same rows and no operation but to take guesses back.
        `guesses`: those of the step itself.
        """
        changes = lane.joining or any(slot.gone for slot in lane.rows)
        others = self.admission.waiting or self.admission.prefills or self.admission.ops
        ends = any(slot.session.generated + guesses + 1 >= slot.session.request.max_tokens for slot in lane.rows)
        is_single = len(lane.rows) > 1 or self.filling.is_single(lane.rows[0].session, self._in_flight)
        has_room = self.admission.tokens_used <= self.admission.room.budget
        return is_single and not changes and not others and not ends and has_room

    def _lane(self, step: Step) -> Lane | None:
        return next((lane for lane in self.admission.lanes if lane.number == step.lane), None)

    def _decode(self, lane: Lane) -> Step:
        self.admission.lanes.remove(lane)
        self.admission.lanes.append(lane)
        lane.prepare(self.admission.ops, self.admission.keep_as)
        tokens = tuple(tuple(slot.session.tokens[slot.sent :]) for slot in lane.rows)
        for slot in lane.rows:
            slot.sent = len(slot.session.tokens)
            self.admission.computed(slot)
        step = Step(lane.number, self.admission.pop_ops(), tuple(lane.rows), tokens, samples=True)
        filled: tuple[int, ...] = ()
        padding = 0
        if len(tokens) == 1:
            session, again = lane.rows[0].session, lane.again
            filled, padding = self.filling.next_tokens(session, self._in_flight, tokens[0], again=again)
        lane.again = False
        if len(filled) <= 1:
            step = replace(step, ahead=self._steps_ahead(lane))
        elif not lane.ahead:  # else the step has begun, without guesses
            step = replace(step, tokens=(filled,), unverified=len(filled) - 1, padding=padding)
        lane.ahead = step.ahead > 0
        self.flight.sent(step)
        return step

    def has_guesses(self, step: Step) -> bool:
        """Whether the next step after one that runs should have guesses, for which no step is to begin ahead."""
        if len(step.rows) > 1:
            return False
        slot, session = step.rows[0], step.rows[0].session
        return self._waits(slot) or len(self.filling.next_tokens(session, self._in_flight, session.tokens[-1:])[0]) > 1

    def _waits(self, slot: Slot) -> bool:
        """Whether a session that has its lane to itself may get guesses only after its next token: what its grammar forces, or
        one for which the next step is to wait.
        """
        if slot.session.is_bound and self.filling.ever_guesses:
            return True
        return self.leads(slot) and self.filling.awaited_after(slot.session, self._in_flight) is not None

    def _steps_ahead(self, lane: Lane) -> int:
        """See Step.ahead: 0 while another session is about to join the lane, 1 while other sessions wait."""
        if not self._begins_ahead or self.admission.prefills:
            return 0
        if (slot := lane.only) and self._waits(slot):
            return 0
        most = MAX_STEPS if self.admission.decoding == 1 and not self.admission.waiting else 1
        return min(most, *(slot.session.tokens_ahead for slot in lane.rows))

    def _run_chunk(self, prefill: Prefill) -> Step:
        self.admission.prefills.remove(prefill)
        self.admission.prefills.append(prefill)
        prefill.slots = free_rows(prefill.slots, prefill.lane, self.admission.ops, self.admission.keep_as)
        prefill.begun = True
        is_alone = len(self.admission.prefills) == 1 and not (self.admission.decoding or self.admission.waiting)
        most = self.admission.chunk_size.of(prefill, self.admission.decoding, is_alone=is_alone)
        begin, rows = prefill.slots[0].sent, tuple(prefill.slots)
        for slot in rows:
            self.admission.begins_chunk(slot)
        tokens = prefill.chunk(most, is_on_grid=self.admission.plan.chunked)
        for slot in rows:
            self.admission.computed(slot)
        samples = not prefill.ready and prefill.slots[0].evaluation is None
        ops = self.admission.pop_ops()
        self.flight.sent(step := Step(prefill.lane, ops, rows, tokens, samples, begin, of_prompt=True))
        return step
