"""One stage's work on frames. All methods run in the compute thread."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from node.core.axes import Axes
from node.core.errors import BadRequest, ModelUnsupported, PippinError
from node.core.evaluation import ChunkRequest
from node.core.frames import Back, CacheOp, Drop, Frame, NonFiniteRow
from node.core.mlx_errors import MLX_ERRORS
from node.core.pictures import Picture
from node.engine.device import is_gpu
from node.engine.faults import Faults
from node.engine.judge import Judge, ends, look_ahead, token_of
from node.engine.mutual import Mutual
from node.engine.ring_kv import RingKv
from node.engine.sampling import Draw, Drawn, begin_draw
from node.engine.stage import Stage
from node.engine.tensor_codec import Packed, pack, token_array, unpack, unpack_tokens
from node.engine.tower import Seen, Splice, Tower
from node.engine.verdict import Following, StepFailed, Verdict
from node.text.constraint import Constraints

MAX_JOB_S = 0.1
"""Time after which a job begins no further step: a job that runs for long is taken for one that hangs."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A step's result on its way to the next stage. Its evaluation has begun."""

    tokens: mx.array | None
    packed: Packed
    finite: mx.array | None
    """Whether each result is finite, as of Stage.finite; None if the driver makes no results of the step."""


class Runner:
    """Runs one ring's steps on a stage. Raises StepFailed when a step can't be computed, the codec's errors, and
    DeviceFailed once the device has failed since the ring began.
    """

    def __init__(self, stage: Stage, directory: Path, faults: Faults) -> None:
        """`directory`: of the model's files; a driver reads the tokenizer there. `faults`: of the device."""
        self._stage = stage
        self._judge = Judge(stage)
        self._faults = faults
        self.kv = RingKv(stage, faults)
        self._together = is_gpu()
        """Evaluate a step that is none of a prompt, its caches and what is made of its result in one call. A GPU starts anew for each
        call, which takes it some 15 µs (estimated). On a CPU caches would be updated late: see ADR 0021.
        """
        self.plan = stage.plan
        self.constraints = Constraints(directory, self.plan.vocabulary)
        """Of the sessions' grammars; may be used in any thread."""

    def apply(self, ops: Sequence[CacheOp]) -> None:
        with self._step():
            self.kv.apply(ops)

    @contextmanager
    def _step(self, lane: int | None = None) -> Iterator[None]:
        """Turns MLX's errors into StepFailed. On any error the lane is dropped, as its layers may differ."""
        self.kv.check()
        try:
            yield
            if lane is not None:
                self._confirm()
        except (PippinError, *MLX_ERRORS) as error:
            if lane is not None:
                self._stage.lanes.apply(Drop(lane))
            if isinstance(error, PippinError):
                raise
            raise StepFailed(f"The step could not be computed: {error}") from error

    def _confirm(self) -> None:
        """Before results of a suspect device leave: wait until all its work has ended, so that its failure surfaces here."""
        if self._faults.is_suspect:
            mx.synchronize()
            self._faults.good_step()

    # --- a step, at any stage ---

    def _begin(
        self,
        frame: Frame,
        tokens: mx.array | None,
        tensors: Sequence[mx.array] = (),
        *,
        last: bool = False,
        splice: Splice | None = None,
    ) -> Outgoing:
        """Run this stage's layers, and begin the evaluation of what the next stage needs; of that of the `last` one, the
        driver. `tokens`: int32 [rows, length], need not be evaluated.
        """
        assert frame.lane is not None
        lengths, unverified, judged = frame.lengths, frame.unverified, frame.sampled or frame.every
        hidden = self._stage.run(
            frame.lane,
            tokens,
            tensors,
            lengths,
            wanted=judged or not last,
            unverified=unverified,
            deferred=self._together,
            splice=splice,
            shifts=frame.shifts,
            spans=frame.spans,
        )
        finite = self._stage.finite(hidden, lengths, unverified) if judged else None
        is_short = last and frame.sampled and not frame.every
        packed = Packed(self._stage.last(hidden, lengths, unverified) if is_short else hidden)
        if not self._together:
            mx.async_eval(finite)  # type: ignore[no-untyped-call]
        mx.async_eval(packed.bits, finite, *self._beside(frame.lane))  # type: ignore[no-untyped-call]
        return Outgoing(tokens, packed, finite)

    def _beside(self, lane: int) -> list[mx.array]:
        """What is to be evaluated in the same call as what is made of the result of a lane's step."""
        return self._stage.states(lane) if self._together else []

    def _sent(self, frame: Frame, outgoing: Outgoing) -> Frame:
        """The frame for the next stage: with the result, and a fault for each further row that is not finite."""
        stage, tokens = self._stage, frame.tokens
        if tokens is None and outgoing.tokens is not None and self.plan.reads_tokens:
            (tokens,) = pack([outgoing.tokens])
        rows: Any = [] if outgoing.finite is None else outgoing.finite.tolist()
        known = {fault.row for fault in frame.faults}
        new = [NonFiniteRow(k, stage.start, stage.end) for k, good in enumerate(rows) if not good and k not in known]
        return replace(frame, tensors=outgoing.packed.read(), tokens=tokens, faults=(*frame.faults, *new))

    # --- the driver ---

    @property
    def has_mutual_pictures(self) -> bool:
        """Whether the places of a picture see each other."""
        return isinstance(self._stage.placing, Mutual)

    def axes(self, pictures: Sequence[Picture], prompt: Sequence[int]) -> Axes | None:
        """Where the pictures of a prompt are, if the model's have positions in three axes or may not be divided. Raises
        ModelUnsupported if the model takes no pictures here, and BadRequest for one that is not in its form or place. In any thread.
        """
        tower: Tower | None = getattr(self._stage.model, "tower", None)
        if tower is None or tower.form.vocabulary != self.plan.vocabulary:
            raise ModelUnsupported(f"This {self.plan.model_type} model takes no pictures on this node.")
        if self.plan.shared and self._stage.end < self.plan.layers:
            what = f"This {self.plan.model_type} model takes no pictures while its layers are on several nodes"
            raise ModelUnsupported(
                f"{what}: later ones embed the tokens.", hint="A node with room for all can take them."
            )
        for picture in pictures:
            picture.check()
            if not tower.form.takes(picture.width, picture.height):
                raise BadRequest(f"The model takes no picture of {picture.width}x{picture.height} pixels.")
        form = tower.form
        grids = [form.grid(picture.width, picture.height) for picture in pictures]
        if form.in_axes:
            return Axes(prompt, grids, form.vocabulary)
        in_a_row = [(1, rows * columns) for rows, columns in grids]
        return None if form.mutual == "none" else Axes(prompt, in_a_row, form.vocabulary, mutual=True)

    def see(
        self, pictures: Sequence[Picture], tokens: Sequence[int], sent: int, longest_s: float
    ) -> Generator[None, None, Seen]:
        """See Tower.see_next."""
        tower: Tower = self._stage.model.tower
        with self._step():
            return (yield from tower.see_next(pictures, tokens, sent, longest_s))

    def begin(self, frame: Frame, tokens: Sequence[Sequence[int]], seen: Seen | None = None) -> Frame:
        """Apply the operations and run the driver's layers on `tokens`, a row for each session, of the lengths that the
        frame tells; returns the frame for the next stage. `seen`: the pictures in the only row.
        """
        with self._step(frame.lane):
            self.kv.apply(frame.ops)
            ids, splice = _spliced(tokens, seen)
            return self._sent(frame, self._begin(frame, ids, splice=splice))

    def finish(self, frame: Frame, draws: Sequence[Draw], following: Following) -> Verdict:
        """Apply the LM head to the hidden states that came back, sample a token, or a failure, for each row, and judge the
        guesses: see `Judge.judge`. If the first one behind the step is right, begin a step of further guesses; else take the
        wrong ones back and begin the lane's next step.

        To begin that step in the same job saves two hand-overs between threads for each token. If it can be taken back,
        and no guess is in flight, it begins before the tokens are read, so that the device does not wait for the graph.
        """
        with self._step(frame.lane):
            assert frame.lane is not None
            lane, guesses = frame.lane, following.guesses
            # None is drawn after padding, which is at a step's end.
            logits = self._stage.finish(unpack(frame.tensors), unverified=frame.unverified)[: len(draws)]
            drawn = None if guesses else begin_draw(logits, draws)
            after = replace(frame, ops=(), tokens=None, faults=(), unverified=0, every=False, spans=())
            early = drawn and following.chain and self.plan.steps_back
            # No guess, but its session may end with the token, which nobody has read yet.
            begun = self._begin(replace(after, unverified=1), drawn.tokens) if drawn and early else None
            if drawn:
                results, right = self._judge.read(drawn, draws, frame.faults), 0
            else:
                results, right = self._judge.judge(logits, draws, guesses, frame.faults)
            look_ahead(results, draws)
            if right == len(results) < len(draws):
                return Verdict(results, right, again=True)
            if right == len(draws):
                if not following.next_guesses:
                    return Verdict(results, right)
                # All that were in flight count, too: their session may be cancelled meanwhile, and they are taken back.
                after = replace(after, unverified=len(guesses) + len(following.next_guesses))
                begun = self._begin(after, token_array([following.next_guesses]))
                return Verdict(results, right, self._sent(after, begun), following.next_guesses)
            if not following.chain or ends(results, draws):
                self.kv.apply((Back(lane, 1),) if begun else ())
                return Verdict(results, right)
            if len(guesses) > right:
                after = replace(after, ops=(Back(lane, len(guesses) - right),))
                self.kv.apply(after.ops)
            last = drawn.tokens if drawn else token_array([[token_of(results[-1])]])
            begun = begun or self._begin(after, last)
            self._stage.lanes.lane(lane).undos.clear()  # all steps are needed
            return Verdict(results, right, self._sent(after, begun))

    def evaluate(self, frame: Frame, chunks: Sequence[ChunkRequest]) -> Verdict:
        """The result, or the failure, of each row of a step of evaluations that came back."""
        with self._step(frame.lane):
            return Verdict(self._judge.evaluated(unpack(frame.tensors), chunks, frame.faults))

    def run(
        self,
        frame: Frame,
        tokens: Sequence[Sequence[int]],
        draws: Sequence[Draw] = (),
        chunks: Sequence[ChunkRequest] = (),
        ahead: int = 0,
        go_on: Callable[[], bool] = lambda: True,
        *,
        told: bool = False,
        seen: Seen | None = None,
    ) -> Generator[Verdict, None, None]:
        """A whole step of a ring of one stage, with a result for each of `draws` or of `chunks`; yields its verdict. If the
        step has guesses, those that are wrong are yet to be taken back.

        With `ahead`, so many steps of the lane, this one included: a verdict says whether the next one follows. Each
        begins before the tokens of the one before it are read, as in mlx-lm's generate_step, so that the device does not
        wait for a graph; one more has begun at the end. Its tokens are drawn before that, too, unless grammars or penalties
        need to know those. None follows after MAX_JOB_S, after a session's end, or once `go_on` says no. Requires
        `Plan.steps_back`. `told`: a verdict has the hidden states. `seen`: as in `begin`.
        """
        assert frame.lane is not None
        until = time.monotonic() + MAX_JOB_S
        with self._step(frame.lane):
            self.kv.apply(frame.ops)
            lanes = self._stage.lanes
            drawn = lanes.pop_ahead(frame.lane, tokens) or self._run_asked(frame, tokens, draws, chunks, told, seen)
            if isinstance(drawn, Verdict):
                self._confirm()
                yield drawn
                return
            for verdict in self._verdicts(
                frame, drawn, draws, ahead, lambda: time.monotonic() <= until and go_on(), told
            ):
                self._confirm()
                yield verdict

    def _verdicts(
        self, frame: Frame, drawn: Drawn, draws: Sequence[Draw], ahead: int, go_on: Callable[[], bool], told: bool
    ) -> Generator[Verdict, None, None]:
        """That of the step which has drawn these tokens, and of those that follow; see `run`."""
        assert frame.lane is not None
        for left in reversed(range(ahead)):
            hidden = self._stage.run(
                frame.lane, drawn.tokens, unverified=1, deferred=self._together, shifts=frame.shifts
            )
            logits = self._stage.finish(hidden)
            results, draws, following = self._judge.read_and_draw(logits, drawn, draws, self._beside(frame.lane))
            following.hidden = hidden if told else ()
            if not left or ends(results, draws) or not go_on():
                following.after = [token_of(each) for each in results]
                self._stage.lanes.lane(frame.lane).ahead = following
                yield Verdict(results, hidden=pack(drawn.hidden))
                return
            yield Verdict(results, begun=frame, hidden=pack(drawn.hidden))
            drawn = following
        results = self._judge.read(drawn, draws)
        look_ahead(results, draws)
        yield Verdict(results, hidden=pack(drawn.hidden))

    def _run_asked(
        self,
        frame: Frame,
        tokens: Sequence[Sequence[int]],
        draws: Sequence[Draw],
        chunks: Sequence[ChunkRequest],
        told: bool,
        seen: Seen | None,
    ) -> Verdict | Drawn:
        """Run a step that has not begun ahead: returns its verdict, or the tokens that it draws where steps may follow before
        they are read.
        """
        assert frame.lane is not None
        (ids, splice), lengths, unverified = _spliced(tokens, seen), frame.lengths, frame.unverified
        hidden = self._stage.run(
            frame.lane,
            ids,
            (),
            lengths,
            wanted=bool(draws or chunks or told),
            unverified=unverified,
            deferred=self._together and bool(draws),
            splice=splice,
            shifts=frame.shifts,
            spans=frame.spans,
        )
        if not draws:
            return Verdict(self._judge.evaluated(hidden, chunks), hidden=pack(hidden) if told else ())
        logits, beside = self._stage.finish(hidden, lengths, unverified=unverified), self._beside(frame.lane)
        if unverified:
            results, right = self._judge.judge(logits, draws, tokens[0][1 : len(draws)], beside=beside)
            look_ahead(results, draws)
            again = right == len(results) < len(draws)
            return Verdict(results, right, again=again, hidden=pack(hidden) if told else ())
        drawn = begin_draw(logits, draws, beside)
        drawn.hidden = hidden if told else ()
        return drawn

    # --- the other stages ---

    def relay(self, frame: Frame, *, last: bool) -> Frame:
        """Apply the operations and run this stage's layers; returns the frame for the next stage, or for the driver from
        the `last` one. A failed step passes as it is.
        """
        with self._step(frame.lane):
            self.kv.apply(frame.ops)
            if frame.lane is None or frame.failure:
                return frame
            tokens = unpack_tokens(frame.tokens, self.plan.vocabulary) if frame.tokens else None
            frame = self._sent(frame, self._begin(frame, tokens, unpack(frame.tensors), last=last))
            return replace(frame, tokens=None, lengths=()) if last else frame


def _spliced(tokens: Sequence[Sequence[int]], seen: Seen | None) -> tuple[mx.array, Splice | None]:
    """The ids of a step, and what comes in the places of pictures."""
    if seen is None:
        return token_array(tokens), None
    ids, splice = seen.splice(tokens[0])
    return token_array([ids]), splice
