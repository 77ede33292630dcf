"""How many tokens the steps of a session have that has its lane to itself, and what fills them: guesses that are there, or that are
worth waiting for. Pure.
"""

from collections import defaultdict
from collections.abc import Sequence

from node.core.row_family import RowFamily
from node.placement.frame_rows import guesses_to_wait_for, most_at, tokens_of_frame
from node.ring.flight import Step
from node.ring.guess_gain import GuessGain
from node.ring.running_mean import FADING, LONGEST, SMOOTHING, RunningMean
from node.ring.session import Session


class Filling:
    def __init__(self, stages: int, *, guesses: bool) -> None:
        """`stages`: of the ring. `guesses`: whether tokens may be guessed."""
        self._stages = stages
        self._guesses = guesses
        self.family = RowFamily()
        self.context = 0
        """Most tokens of a session that the draft model or MTP layer can follow; 0: there is neither."""
        self.watched = False
        """Whether a ring with more stages is a choice: then it counts how many guesses would be right, if it makes any or not."""
        self.gain = GuessGain(stages)
        self._guess_s = 0.0
        """Seconds that it takes for a guess; 0 before the first."""
        self._token_s = RunningMean()
        """Seconds of a step of one token, by those of all."""
        self._costs = defaultdict[int, RunningMean](RunningMean)
        """What steps of more than the least number of tokens cost, as on one node their sessions have shown."""

    @property
    def ever_guesses(self) -> bool:
        """Whether any step of the ring may have guesses: one stage alone has no use for them in steps of one token."""
        return self._guesses and (self._stages > 1 or self.family.costs[-1][0] > 1)

    @property
    def follows(self) -> bool:
        """Whether the sources of guesses follow a session that has its lane to itself."""
        return self.ever_guesses or (self._guesses and self.watched)

    def next_tokens(
        self,
        session: Session,
        in_flight: int,
        certain: Sequence[int] = (),
        guessed: Sequence[int] = (),
        *,
        again: bool = False,
    ) -> tuple[tuple[int, ...], int]:
        """The tokens of the session's next step: the `certain` one, or none, and those that may come after these guesses, unless
        it is computed `again` without guesses; and how many at the end are there only because no shorter step has the same bits. `in_flight`:
        steps of the session that are in the ring at once.
        """
        least = 0.0 if certain else self.gain.least_rate
        if least and session.guess_rate(guessed) < least:
            return (), 0
        position = len(session.tokens) - len(certain) + len(guessed)
        right = session.guess_rate() if len(self.family.costs) > 1 else 0.0
        size = self._best_size(session, right, in_flight, most_at(position, self.family))
        most = min(size, most_at(position, self.family)) - len(certain)
        tokens = [*certain, *(session.next_guesses(guessed, most) if self._guesses and not again else ())]
        if not tokens:
            return (), 0
        if len(tokens) != size:
            size = self._best_size(session, right, in_flight, len(tokens))
        padding = max(0, size - len(tokens))
        return (*tokens[:size], *tokens[-1:] * padding), padding

    def is_single(self, session: Session, in_flight: int) -> bool:
        """Whether the session's next step has one token, if there are guesses or not."""
        if len(self.family.costs) == 1:
            return self.family.costs[0][0] == 1
        most = most_at(len(session.tokens), self.family)
        return self._best_size(session, session.guess_rate(), in_flight, most) == 1

    def _begins(self, session: Session) -> bool:
        """Whether the session, which has one node to itself, has yet to show what steps without guesses take."""
        return self._stages == 1 and not session.least_s.is_known

    def _best_size(self, session: Session, right: float, in_flight: int, most: int) -> int:
        """How many tokens a step should have of a session that has `most`. `right`: how likely a guess is right."""
        if self._begins(session):
            return self.family.costs[0][0]
        return tokens_of_frame(self._measured, right=right, stages=self._stages, in_flight=in_flight, most=most)

    # --- waiting for guesses ------------------------------------------------------------------------------------------

    def awaited_after(self, session: Session, in_flight: int) -> list[int] | None:
        """The guesses at a session's next tokens after which the draft model has yet to make one for which the next step is to
        wait; None if it is to wait for none. Where steps may have one token, those of a ring do not wait, as further guesses
        can follow them.
        """
        needs_none = self._stages > 1 and self.family.costs[0][0] == 1
        if not self.context or needs_none or not self.ever_guesses or self._begins(session):
            return None
        guesses = guesses_to_wait_for(
            self._measured,
            right=session.guesser.draft_rate,
            wait=self._guess_s / self._token_s.value if self._token_s.value else 0.0,
            stages=self._stages,
            in_flight=in_flight,
            most=most_at(len(session.tokens) - 1, self.family),
        )
        guessed = session.guesses_to_draft_after((), guesses)
        return guessed if guessed is not None and len(session.tokens) + len(guessed) < self.context else None

    def note_step(self, step: Step, seconds: float) -> None:
        """Note what a step took, if it was one of a single session, from the end of the one before it, without the guesses for which
        it waited. What did not pay is tried again some time later.
        """
        tokens, family = len(step.tokens[0]) if step.tokens else 1, dict(self.family.costs)
        if len(step.rows) > 1 or tokens not in family or not seconds:
            return
        (least, cost), session = self.family.costs[0], step.rows[0].session
        least_s = session.least_s
        self._token_s.note(seconds / dict(self._measured.costs)[tokens])
        if tokens != least and least_s.is_known:
            self._costs[tokens].note(seconds / least_s.value * cost)
            # Steps take longer as the context grows, and on a busy machine.
            least_s.approach(min(seconds * cost / family[tokens], LONGEST * least_s.value))
        elif step.ahead or least > 1 or session.is_bound or not least_s.is_known:  # else it would have begun ahead
            least_s.note(seconds)
        for count in family.keys() - {least, tokens}:
            self._costs[count].approach(family[count])

    @property
    def _measured(self) -> RowFamily:
        """The family at what its steps cost here, as far as that is known: more than what the device takes, as a step with guesses
        can't begin ahead. The steps of several stages overlap, so they tell nothing of it.
        """
        if self._stages > 1 or len(self.family.costs) == 1:
            return self.family
        costs = ((count, cost, self._costs[count]) for count, cost in self.family.costs)
        return RowFamily(tuple((count, mean.value if mean.is_known else cost) for count, cost, mean in costs))

    def note_round(self, step: Step, seconds: float) -> None:
        """The seconds since the token before that of a step came back, if it was one of a single session."""
        tokens = len(step.tokens[0]) if step.tokens else 1
        self.gain.note(seconds / dict(self.family.costs).get(tokens, 1.0))

    def note_guess(self, seconds: float) -> None:
        """Note what a guess took of the draft model or MTP layer."""
        # The first ones take longer, and so do those that wait for another job: a shorter time counts at once.
        self._guess_s = min(seconds, self._guess_s + SMOOTHING * (seconds - self._guess_s))

    def fade(self) -> None:
        """A step waits for no guess."""
        self._guess_s *= 1 - FADING
