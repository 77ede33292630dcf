"""One stage's work on frames, as serving asks for it. All methods run in the compute thread."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from node.core.errors import PippinError
from node.core.evaluation import Findings, Question, Score
from node.core.failures import FAILURES
from node.core.frames import CacheOp, Drop, Fault, Frame, Held
from node.core.generation import Sampling
from node.engine.sampling import NOTHING, History, Sampled, sample, score
from node.engine.stage import Stage
from node.engine.tensor_codec import pack, token_array, unpack
from node.text.constraint import Constraint, Constraints

log = logging.getLogger(__name__)

HEAD_TOKENS = 64
"""Tokens of a prompt whose logits exist at a time: of a vocabulary of 150,000 they take 40 MB."""


class StepFailed(PippinError):
    """MLX could not compute a step."""

    code = "step_failed"


@dataclass(frozen=True, slots=True)
class Draw:
    """What sampling needs to know of a session: the token to draw has `position`, from 0, and follows `history`."""

    sampling: Sampling
    position: int
    history: History
    ends: Callable[[int], bool]
    """Whether the session ends with this token."""
    constraint: Constraint | None = None
    """What its grammar allows; needs the generated tokens of `history`."""


class Runner:
    """Raises StepFailed when a step can't be computed, and the codec's errors for what came over the network."""

    def __init__(self, stage: Stage, directory: Path) -> None:
        """`directory`: of the model, for what the driver needs of its tokenizer."""
        self._stage = stage
        self.constraints = Constraints(directory, stage.plan.vocabulary)
        """For the grammars of sessions; may be used in any thread."""
        self.kv_bytes = 0
        """What the caches took after the last operation on them; may be read in any thread."""

    def apply(self, ops: Sequence[CacheOp]) -> None:
        with self._step():
            self._apply(ops)

    def _apply(self, ops: Sequence[CacheOp]) -> None:
        try:
            for op in ops:
                self._stage.lanes.apply(op)
        except FAILURES:  # one that was broken off may have changed some layers' caches and not others'
            self.reset()
            raise
        if ops:
            self.kv_bytes = self._stage.lanes.kv_bytes

    def inherit(self, held: Sequence[Held]) -> tuple[Held, ...]:
        """Take over what earlier rings left of these sequences, and free all else of that. Gives what there was."""
        try:
            here = self._stage.lanes.take_from(self._stage.kept, held)
        except FAILURES as error:
            log.warning("KV that outlived its ring is let go: %s", error)
            self._stage.kept.clear()
            self.reset()
            return ()
        self.kv_bytes = self._stage.lanes.kv_bytes
        return here

    def leave(self) -> None:
        """The ring is no more: its KV is kept for the next one of these layers."""
        self._stage.lanes.leave_to(self._stage.kept)
        self.kv_bytes = 0

    def reset(self) -> None:
        """Free all KV of this ring."""
        self._stage.lanes.clear()
        self.kv_bytes = 0

    @contextmanager
    def _step(self, lane: int | None = None) -> Iterator[None]:
        """A step that fails ends as StepFailed, and its lane, whose layers may have come to differ, is dropped."""
        try:
            yield
        except (PippinError, *FAILURES) as error:
            if lane is not None:
                self._stage.lanes.apply(Drop(lane))
            if isinstance(error, PippinError):
                raise
            raise StepFailed(f"The step could not be computed: {error}") from error

    @property
    def batchable(self) -> bool:
        """Whether several sessions can share a lane."""
        return self._stage.plan.batchable

    @property
    def pads(self) -> bool:
        """Whether the rows of a step of prompts may differ in length."""
        return self._stage.plan.pads

    @property
    def chunked(self) -> bool:
        """Whether the answer depends on how a prompt is divided into chunks."""
        return self._stage.plan.chunked

    @property
    def embeds(self) -> bool:
        """Whether the model gives embeddings."""
        return self._stage.plan.embeds

    @property
    def vocabulary(self) -> int:
        """Token ids are below it; MLX does not check, and reads beyond its arrays."""
        return self._stage.plan.vocabulary

    @property
    def trimmable(self) -> bool:
        """Whether the caches can go back to an earlier position."""
        return self._stage.plan.trimmable

    # --- the driver ---

    def begin(self, frame: Frame, tokens: Sequence[Sequence[int]]) -> Frame:
        """Operations and the driver's layers; gives the frame for the next stage. Rows differ in length as the frame says."""
        with self._step(frame.lane):
            self._apply(frame.ops)
            return self._begin(frame, tokens)

    def _begin(self, frame: Frame, tokens: Sequence[Sequence[int]]) -> Frame:
        assert frame.lane is not None
        ids = token_array(tokens)
        hidden = self._stage.begin(frame.lane, ids, frame.lengths)
        told = pack([ids])[0] if self._stage.plan.reads_tokens else None
        return replace(self._checked(frame, hidden), tensors=pack(hidden), tokens=told)

    def finish(
        self, frame: Frame, draws: Sequence[Draw], *, go_on: bool
    ) -> tuple[list[Sampled | StepFailed], Frame | None]:
        """Head and sampling of what came round, a draw for each row, or its failure.

        With `go_on`, and if no session ends with its token, the lane's next step as well: the frame for the next stage.
        That saves two hand-overs between threads for each token.
        """
        with self._step(frame.lane):
            drawn = self._draw(unpack(frame.tensors), draws, faults=frame.faults)
            tokens = [each.token for each in drawn if isinstance(each, Sampled)]
            if (
                not go_on
                or len(tokens) < len(drawn)
                or any(draw.ends(token) for draw, token in zip(draws, tokens, strict=True))
            ):
                return drawn, None
            return drawn, self._begin(replace(frame, ops=(), faults=()), [[token] for token in tokens])

    def run_alone(
        self, frame: Frame, tokens: Sequence[Sequence[int]], draws: Sequence[Draw]
    ) -> list[Sampled | StepFailed]:
        """A whole step of a ring of one node. Nothing is drawn when there are no `draws`."""
        assert frame.lane is not None
        with self._step(frame.lane):
            self._apply(frame.ops)
            hidden = self._stage.begin(frame.lane, token_array(tokens), frame.lengths)
            return self._draw(hidden, draws, frame.lengths) if draws else []

    def _draw(
        self,
        hidden: Sequence[mx.array],
        draws: Sequence[Draw],
        lengths: Sequence[int] = (),
        faults: Sequence[Fault] = (),
    ) -> list[Sampled | StepFailed]:
        logits = self._stage.finish(hidden, lengths)
        allowed = [draw.constraint.allowed(draw.history.generated) if draw.constraint else None for draw in draws]
        drawn = sample(
            logits,
            [draw.sampling for draw in draws],
            [draw.position for draw in draws],
            [draw.history for draw in draws],
            allowed,
        )
        return [
            self._not_finite(row, faults) if sampled.token == NOTHING else sampled for row, sampled in enumerate(drawn)
        ]

    def _not_finite(self, row: int, faults: Sequence[Fault]) -> StepFailed:
        """The failure of a row alone: the others have numbers of their own."""
        layers = next((f"layers {fault.start} to {fault.end}" for fault in faults if fault.row == row), "")
        alone = self._stage.end == self._stage.plan.layers
        where = layers or (f"layers 0 to {self._stage.end} or the head" if alone else "the final norm or the head")
        return StepFailed(
            f"The numbers of {where} are not finite (NaN or infinity), so there is nothing to draw a token from.",
            hint="The weights may be damaged, or too large for their dtype: fetch the model again, or take another.",
        )

    def answer(self, frame: Frame, questions: Sequence[Question]) -> list[Findings | StepFailed]:
        """Answer a question about each row of a step that came round."""
        with self._step(frame.lane):
            return self._answer(unpack(frame.tensors), questions, frame.faults)

    def answer_alone(
        self, frame: Frame, tokens: Sequence[Sequence[int]], questions: Sequence[Question]
    ) -> list[Findings | StepFailed]:
        """The same on a ring of one node: the whole step."""
        assert frame.lane is not None
        with self._step(frame.lane):
            self._apply(frame.ops)
            return self._answer(self._stage.begin(frame.lane, token_array(tokens), frame.lengths), questions)

    def _answer(
        self, hidden: Sequence[mx.array], questions: Sequence[Question], faults: Sequence[Fault] = ()
    ) -> list[Findings | StepFailed]:
        find = [self._total if question.top is None else self._scores for question in questions]
        found = [find[row](hidden, row, question) for row, question in enumerate(questions)]
        return [each if _is_finite(each) else self._not_finite(row, faults) for row, each in enumerate(found)]

    def _total(self, hidden: Sequence[mx.array], row: int, question: Question) -> Findings:
        states = self._stage.hidden(self._stage.part(hidden, row, 0, question.tokens))
        total: Any = mx.sum(states[0].astype(mx.float32), axis=0).tolist()
        return Findings(question.tokens, total=total)

    def _scores(self, hidden: Sequence[mx.array], row: int, question: Question) -> Findings:
        scores: list[Score] = []
        for begin in range(0, len(question.following), HEAD_TOKENS):
            following = question.following[begin : begin + HEAD_TOKENS]
            part = self._stage.part(hidden, row, begin, begin + len(following))
            scored = score(self._stage.finish(part, every=True)[0], following, question.top or 0)
            scores += [Score(each.logprob or 0.0, each.top) for each in scored]
        return Findings(question.tokens, scores)

    # --- the other stages ---

    def relay(self, frame: Frame, *, last: bool) -> Frame:
        """Operations and this stage's layers; gives the frame for the next stage, from the `last` one for the driver.

        A failed step passes as it is.
        """
        with self._step(frame.lane):
            self._apply(frame.ops)
            if frame.lane is None or frame.failure:
                return frame
            tokens = unpack([frame.tokens])[0] if frame.tokens else None
            hidden = self._stage.run(frame.lane, unpack(frame.tensors), tokens, frame.lengths)
            frame = self._checked(frame, hidden)
            if not last:
                return replace(frame, tensors=pack(hidden))
            return replace(frame, tensors=pack(self._back(hidden, frame)), tokens=None, lengths=())

    def _checked(self, frame: Frame, hidden: Sequence[mx.array]) -> Frame:
        """Note which rows are no finite numbers after this stage and were before; only where something is made of them."""
        if not (frame.sampled or frame.every):
            return frame
        rows: Any = self._stage.finite(hidden, frame.lengths).tolist()
        known = {fault.row for fault in frame.faults}
        stage = self._stage
        new = [Fault(row, stage.start, stage.end) for row, good in enumerate(rows) if not good and row not in known]
        return replace(frame, faults=(*frame.faults, *new)) if new else frame

    def _back(self, hidden: tuple[mx.array, ...], frame: Frame) -> tuple[mx.array, ...]:
        """What the driver needs."""
        if frame.every:
            return hidden
        return self._stage.last(hidden, frame.lengths) if frame.sampled else ()


def _is_finite(findings: Findings) -> bool:
    return all(map(math.isfinite, findings.total)) and all(math.isfinite(score.logprob) for score in findings.scores)
