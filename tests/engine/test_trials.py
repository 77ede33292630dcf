"""A model's first run is in a process that may die."""

import pytest

from node.core.errors import ModelCrashes
from node.engine import trials
from node.engine.trials import Trials
from node.text.sandbox import Bounds
from tests.engine.configurations import CONFIGURATIONS

CRASHES = CONFIGURATIONS["bailing_moe"] | {"num_experts_per_tok": 1}
"""MLX writes beyond the end of an array."""


async def test_a_config_that_ends_the_process_is_refused_and_another_one_is_not(sandbox_server):
    checked = Trials(sandbox_server)
    with pytest.raises(ModelCrashes, match=r"first run of this bailing_moe model.*its process crashed"):
        await checked.check(CRASHES, 2**20, 0)
    await checked.check(CONFIGURATIONS["bailing_moe"], 2**20, 0)


async def test_a_model_that_needs_too_long_or_cannot_run_at_all(sandbox_server, monkeypatch):
    checked = Trials(sandbox_server)
    await checked.check(CONFIGURATIONS["llama"] | {"num_attention_heads": -1}, 2**20, 0)  # the node refuses it itself
    monkeypatch.setattr(trials, "_BOUNDS", Bounds(seconds=0.01, memory=2**32, reply=2**20))
    with pytest.raises(ModelCrashes, match=r"it took more than 0\.01 s"):
        await checked.check(CONFIGURATIONS["llama"], 2**20, 0)


async def test_a_model_is_tried_once(sandbox_server, monkeypatch):
    checked = Trials(sandbox_server, known=[CONFIGURATIONS["mamba2"]])
    await checked.check(CONFIGURATIONS["llama"], 2**20, 0)
    monkeypatch.delattr(trials, "Sandbox")
    await checked.check(dict(reversed(CONFIGURATIONS["llama"].items())), 2**20, 0)
    await checked.check(CONFIGURATIONS["mamba2"], 2**20, 0)


async def test_without_a_process_a_model_runs_untried(sandbox_server, monkeypatch, caplog):
    monkeypatch.setattr(trials, "_JOB", "node.engine.trial:nothing")
    await Trials(sandbox_server).check(CRASHES, 2**20, 0)
    assert "without a trial" in caplog.text
