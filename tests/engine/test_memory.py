"""What MLX keeps beside weights and KV: free buffers."""

import mlx.core as mx
import pytest

from node.core.frames import Open
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import Stages, prompt, write_model


@pytest.fixture
def clears(monkeypatch):
    """A list that grows with each clear of MLX's free buffers."""
    found = []
    monkeypatch.setattr(mx, "clear_cache", lambda: found.append(1))
    return found


def test_decoding_clears_the_free_buffers_now_and_then(tmp_path, clears, monkeypatch):
    monkeypatch.setattr("node.engine.stage._CLEAR_STEPS", 4)
    ring = Stages(write_model(tmp_path, CONFIGURATIONS["llama"])).ring(0, 1, 4)
    ring.apply(Open(1))
    for lane in (0, 1):
        ring.step(prompt(20), lane=lane)
    clears.clear()
    counts = []
    for _ in range(4):
        for lane in (0, 1):  # a step of any lane counts, on each of the two stages
            ring.step(prompt(1), lane=lane)
            counts.append(len(clears))
    assert counts == [0, 0, 0, 2, 2, 2, 2, 4]


def test_what_follows_a_session_by_a_few_tokens_clears_nothing(tmp_path, clears):
    """As a draft model or an MTP layer does with each guess."""
    ring = Stages(write_model(tmp_path, CONFIGURATIONS["llama"])).ring(0, 4)
    ring.step(prompt(20))
    clears.clear()
    for length in (1, 2, 3, 5):
        ring.step(prompt(length))
    assert not clears
    ring.step(prompt(20))
    assert clears
