"""Sessions that begin with the KV of another session."""

import mlx.core as mx
import pytest

from node.core.errors import PippinError
from node.core.frames import Drop, Filter, Forget, Keep, Merge, Open, Reuse, Take
from node.engine.caches import empty_caches
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import Stages, Whole, likeliest, prompt, same, shared_model

CUT = (0, 1, 4)
CAPACITY = 20 + 512
"""Tokens for which a cache of mlx-lm has room after chunks of 20 and of up to 512 tokens."""


def step_in_two(ring, tokens, first):
    """Run a prompt as two chunks.

    A session that begins with the `first` tokens then has KV of the same chunk as a prompt of these tokens alone. The
    kernels of a GPU give other bits for a chunk of another length.
    """
    for chunk in (tokens[:, :first], tokens[:, first:]):
        if chunk.size:
            ring.step(chunk)


def test_a_full_window_cannot_go_back():
    ring = Stages(shared_model(CONFIGURATIONS["llama/sliding"])).ring(*CUT)
    ring.step(prompt(6))
    ring.apply(Keep(0, 0, prefix=1, tokens=6), Reuse(1, prefix=1, tokens=5))
    ring.step(prompt(6))
    ring.apply(Keep(0, 0, prefix=2, tokens=12))
    with pytest.raises(PippinError, match="cannot go back"):
        ring.apply(Reuse(1, prefix=2, tokens=11))


@pytest.mark.parametrize(
    ("name", "reused"),
    [
        ("llama", 6),
        ("llama", 9),
        ("deepseek_v3", 4),
        ("minimax_m3/sparse", 6),
        ("hy_v4", 6),
        ("qwen4_exp", 9),
        ("mamba2", 9),
        ("qwen3_next", 9),
        ("gemma3_text", 9),
    ],
)
def test_a_prefix_is_reused_again_and_again(name, reused):
    directory = shared_model(CONFIGURATIONS[name])
    ring = Stages(directory).ring(*CUT)
    step_in_two(ring, prompt(9), reused)
    ring.apply(Keep(0, 0, prefix=5, tokens=9))
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


@pytest.mark.parametrize(("name", "bits"), [("llama", 0), ("deepseek_v3", 0), ("llama", 8)])
def test_a_prefix_is_taken_without_a_copy(name, bits):
    own = {"head_dim": 32, "num_attention_heads": 2} if bits else {}
    directory = shared_model(CONFIGURATIONS[name] | own)
    ring = Stages(directory, bits).ring(*CUT)
    first, second = (Whole(directory, lambda model: empty_caches(model, bits)) for _ in range(2))
    for chunk in (prompt(300)[:, :20], prompt(300)[:, 20:], prompt(9, seed=2)):
        first.step(chunk)
        ring.step(chunk)
    held = ring.stages[1].lanes.kv_bytes
    ring.apply(Keep(0, 0, prefix=5, tokens=309), Drop(0), Take(7, prefix=5))
    assert same(ring.step(prompt(3, seed=3), lane=7), first.step(prompt(3, seed=3)))
    assert ring.stages[1].lanes.kv_bytes == held
    with pytest.raises(PippinError, match="no prefix 5"):
        ring.apply(Take(8, prefix=5))
    # Another session begins with a part of it, for which it needs no more memory than for its own tokens.
    ring.apply(Keep(7, 0, prefix=6, tokens=20), Take(8, prefix=6))
    assert ring.stages[1].lanes.kv_bytes == held + held // CAPACITY * 20
    second.step(prompt(300)[:, :20])
    assert same(ring.step(prompt(2), lane=8), second.step(prompt(2)))


def test_a_part_of_a_long_prefix_takes_little_memory():
    directory = shared_model(CONFIGURATIONS["llama"])
    ring = Stages(directory).ring(*CUT)
    step_in_two(ring, prompt(400), 20)
    ring.apply(Keep(0, 0, prefix=5, tokens=400), Drop(0))
    held = ring.stages[1].lanes.kv_bytes
    ring.apply(Reuse(1, prefix=5, tokens=20))
    assert ring.stages[1].lanes.kv_bytes == held + held // CAPACITY * 20
    whole = Whole(directory)
    whole.step(prompt(400)[:, :20])
    assert same(ring.step(prompt(2), lane=1), whole.step(prompt(2)))


def test_a_recurrent_state_is_only_reused_whole():
    ring = Stages(shared_model(CONFIGURATIONS["mamba2"])).ring(*CUT)
    ring.step(prompt(9))
    ring.apply(Keep(0, 0, prefix=5, tokens=9))
    with pytest.raises(PippinError, match="cannot go back 1 tokens"):
        ring.apply(Reuse(1, prefix=5, tokens=8))
    with pytest.raises(PippinError, match="cannot be trimmed"):
        ring.apply(Reuse(1, prefix=5, tokens=10))


@pytest.mark.parametrize("name", ["llama", "qwen3_next", "gemma3_text", "mamba2"])
def test_a_prefix_of_one_row_of_a_batch(name):
    directory = shared_model(CONFIGURATIONS[name])
    ring = Stages(directory).ring(*CUT)
    ring.apply(Open(1), Open(2))
    tokens = [likeliest(ring.step(prompt(4 * k, seed=k), lane=k)) for k in (1, 2)]
    ring.apply(Merge(9, 1), Merge(9, 2))
    with pytest.raises(PippinError, match="no row 2"):
        ring.apply(Keep(9, 2, prefix=1, tokens=1))
    ring.step(mx.concatenate(tokens), lane=9)
    ring.apply(Keep(9, 0, prefix=1, tokens=5), Keep(9, 1, prefix=2, tokens=9), Filter(9, (1,)), Drop(9))
    for k in (1, 2):
        ring.apply(Reuse(3, prefix=k, tokens=4 * k + 1))
        whole = Whole(directory)
        whole.step(prompt(4 * k, seed=k))
        whole.step(tokens[k - 1])
        assert mx.allclose(ring.step(prompt(2), lane=3), whole.step(prompt(2)), atol=1e-4)
        ring.apply(Drop(3), Forget(k))
