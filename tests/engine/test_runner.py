"""An error in a step becomes StepFailed, and ends only the sessions of that step."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.core.frames import Drop, Frame
from node.core.rings import Fence
from node.engine.faults import Faults
from node.engine.runner import Runner
from node.engine.verdict import StepFailed


@pytest.mark.parametrize(
    "error", [RuntimeError("out of memory"), AssertionError("Wrong type for input."), OverflowError(), KeyError(3)]
)
def test_whatever_a_model_raises_is_a_failed_step(error: Exception) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise error

    dropped = []
    plan, lanes = SimpleNamespace(vocabulary=5, kv=(), trimmable=True), SimpleNamespace(apply=dropped.append)
    stage: Any = SimpleNamespace(
        plan=plan, run=run, lanes=lanes, start=0, end=1, blocks_of=(), cut_caches=(), state_caches=()
    )
    runner = Runner(stage, Path(), Faults())
    with pytest.raises(StepFailed) as failure:
        runner.begin(Frame("r", Fence(1, 1), 0, lane=0), [[1]])
    assert failure.value.__cause__ is error
    assert dropped == [Drop(0)]
