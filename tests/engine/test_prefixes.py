"""Sessions that begin with the KV of another session."""

import mlx.core as mx
import pytest

from node.core.errors import PippinError
from node.core.frames import Drop, Filter, Forget, Keep, Merge, Open, Reuse
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import Stages, Whole, likeliest, prompt, same, write_model

CUT = (0, 1, 4)


def test_a_full_window_cannot_go_back(tmp_path):
    ring = Stages(write_model(tmp_path, CONFIGURATIONS["llama/sliding"])).ring(*CUT)
    ring.step(prompt(6))
    ring.apply(Keep(0, 0, prefix=1), Reuse(1, prefix=1, tokens=5))
    ring.step(prompt(6))
    ring.apply(Keep(0, 0, prefix=2))
    with pytest.raises(PippinError, match="cannot go back"):
        ring.apply(Reuse(1, prefix=2, tokens=11))


@pytest.mark.parametrize(
    ("name", "reused"),
    [("llama", 6), ("llama", 9), ("deepseek_v3", 4), ("mamba2", 9), ("qwen3_next", 9), ("gemma3_text", 9)],
)
def test_a_prefix_is_reused_again_and_again(name, reused, tmp_path):
    directory = write_model(tmp_path, CONFIGURATIONS[name])
    ring = Stages(directory).ring(*CUT)
    ring.step(prompt(9))
    ring.apply(Keep(0, 0, prefix=5))
    ring.step(prompt(4, seed=2))  # its original lane continues, and ends
    ring.apply(Drop(0))
    for lane in (1, 2):
        ring.apply(Reuse(lane, prefix=5, tokens=reused))
        whole = Whole(directory)
        whole.step(prompt(9)[:, :reused])
        for seed in (3, 4):
            assert same(ring.step(prompt(2, seed=seed), lane=lane), whole.step(prompt(2, seed=seed)))
    held = ring.stages[0].lanes.kv_bytes
    ring.apply(Forget(5), Forget(5))
    assert ring.stages[0].lanes.kv_bytes < held
    with pytest.raises(PippinError, match="no prefix 5"):
        ring.apply(Reuse(1, prefix=5, tokens=2))


def test_a_recurrent_state_is_only_reused_whole(tmp_path):
    ring = Stages(write_model(tmp_path, CONFIGURATIONS["mamba2"])).ring(*CUT)
    ring.step(prompt(9))
    ring.apply(Keep(0, 0, prefix=5))
    with pytest.raises(PippinError, match="cannot go back 1 tokens"):
        ring.apply(Reuse(1, prefix=5, tokens=8))
    with pytest.raises(PippinError, match="cannot be trimmed"):
        ring.apply(Reuse(1, prefix=5, tokens=10))


@pytest.mark.parametrize("name", ["llama", "qwen3_next", "gemma3_text", "mamba2"])
def test_a_prefix_of_one_row_of_a_batch(name, tmp_path):
    directory = write_model(tmp_path, CONFIGURATIONS[name])
    ring = Stages(directory).ring(*CUT)
    ring.apply(Open(1), Open(2))
    tokens = [likeliest(ring.step(prompt(4 * k, seed=k), lane=k)) for k in (1, 2)]
    ring.apply(Merge(9, 1), Merge(9, 2))
    with pytest.raises(PippinError, match="no row 2"):
        ring.apply(Keep(9, 2, prefix=1))
    ring.step(mx.concatenate(tokens), lane=9)
    ring.apply(Keep(9, 0, prefix=1), Keep(9, 1, prefix=2), Filter(9, (1,)), Drop(9))
    for k in (1, 2):
        ring.apply(Reuse(3, prefix=k, tokens=4 * k + 1))
        whole = Whole(directory)
        whole.step(prompt(4 * k, seed=k))
        whole.step(tokens[k - 1])
        assert mx.allclose(ring.step(prompt(2), lane=3), whole.step(prompt(2)), atol=1e-4)
        ring.apply(Drop(3), Forget(k))
