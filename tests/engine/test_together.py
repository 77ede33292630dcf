"""On a GPU, a step of one token, its caches and its result are one evaluation. Forced here, where MLX has a CPU."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from node.core.frames import Frame, Open
from node.core.generation import Sampling
from node.core.rings import Fence
from node.engine import runner as module
from node.engine.faults import Faults
from node.engine.runner import Runner
from node.engine.sampling import Draw, History, Sampled
from node.engine.verdict import Following, Verdict
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import load, shared_model

PROMPT = (3, 5, 7, 11, 13)
SAMPLING = Sampling(temperature=0.8, seed=3, top_p=0.9)
STEPS = 24


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Grows with each evaluation that begins."""
    found: list[str] = []
    for name in ("eval", "async_eval"):
        evaluate = getattr(mx, name)
        monkeypatch.setattr(
            mx, name, lambda *trees, name=name, evaluate=evaluate: found.append(name) or evaluate(*trees)
        )
    return found


def draws(position: int) -> list[Draw]:
    return [Draw(SAMPLING, position, History(), lambda _: False)]


def frame(*ops: Any, sampled: bool = True) -> Frame:
    return Frame("r", Fence(1, 1), 0, ops=ops, lane=1, sampled=sampled)


def token(verdict: Verdict) -> int:
    (result,) = verdict.results
    assert isinstance(result, Sampled)
    return result.token


def alone(directory: Path, calls: list[str]) -> tuple[list[int], int]:
    """The tokens of an answer, and the evaluations of its last step."""
    runner = Runner(load(directory, 0, 4), directory, Faults())
    tokens = [token(*runner.run(frame(Open(1)), [PROMPT], draws(0)))]
    for position in range(1, STEPS):
        calls.clear()
        tokens.append(token(*runner.run(frame(), [[tokens[-1]]], draws(position))))
    return tokens, len(calls)


def ahead(directory: Path, calls: list[str]) -> tuple[list[int], int]:
    """As `alone`, with steps that begin before the tokens of the last one are read."""
    runner = Runner(load(directory, 0, 4), directory, Faults())
    tokens = [token(*runner.run(frame(Open(1)), [PROMPT], draws(0)))]
    count = 0
    for verdict in runner.run(frame(), [[tokens[-1]]], draws(1), ahead=STEPS - 1):
        tokens.append(token(verdict))
        count, _ = len(calls), calls.clear()
    return tokens, count


def split(directory: Path, calls: list[str]) -> tuple[list[int], int]:
    """As `alone`, on a ring of two stages: the evaluations of both."""
    driver, last = (Runner(load(directory, *cut), directory, Faults()) for cut in ((0, 2), (2, 4)))
    sent: Frame | None = driver.begin(frame(Open(1)), [PROMPT])
    tokens: list[int] = []
    while len(tokens) < STEPS:
        assert sent
        calls.clear()
        back = last.relay(sent, last=True)
        verdict = driver.finish(back, draws(len(tokens)), Following(chain=True))
        sent = verdict.begun
        tokens.append(token(verdict))
    return tokens, len(calls)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_next", "mamba2"])
@pytest.mark.parametrize(("answer", "together", "apart"), [(alone, 1, 3), (ahead, 1, 3), (split, 3, 9)])
def test_the_same_tokens_with_fewer_evaluations(
    name: str, answer: Any, together: int, apart: int, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = shared_model(CONFIGURATIONS[name])
    if answer is ahead and not load(directory, 0, 4).plan.steps_back:
        pytest.skip("a step of this architecture can't be taken back, so none begins ahead")
    found = {}
    monkeypatch.setattr(module, "MAX_JOB_S", 600)
    for is_gpu in (False, True):
        monkeypatch.setattr(module, "is_gpu", lambda is_gpu=is_gpu: is_gpu)
        found[is_gpu] = answer(directory, calls)
    assert found[True][0] == found[False][0]
    assert (found[False][1], found[True][1]) == (apart, together)
