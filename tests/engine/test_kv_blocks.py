"""KV on disk: blocks of stages of one cut are, bit by bit, what stages of any other cut would have computed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from node.core.frames import Drop, Filter, Keep, Merge, Open, Reuse, Store, Tensor
from node.core.models import ModelVersion
from node.engine.architectures import OF_MLX_VLM, module_of
from node.engine.faults import Faults
from node.engine.kv_blocks import Block
from node.engine.ring_kv import RingKv
from node.engine.stage import Stage
from node.kv.blocks import BLOCK, chain_of, names_of, state_name
from node.kv.store import KvStore
from node.model.config import read_config
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import Stages, at_a_stretch, load, prompt, same, shared_model

TOKENS = prompt(2 * BLOCK + 50)
NAMES = names_of(chain_of(ModelVersion("m"), TOKENS.tolist()[0]))


CHAIN = chain_of(ModelVersion("m"), TOKENS.tolist()[0])
STATE = state_name(NAMES[-1])


def opened(folder: Path) -> KvStore:
    store = KvStore(folder, 1 << 30)
    store.open()
    return store


def store_blocks(stage: Stage, store: KvStore, prefix: int) -> None:
    for index, name in enumerate(NAMES):
        block = stage.block(prefix, index)
        assert block is not None
        store.write("m", name, block)


def restored(stage: Stage, store: KvStore, prefix: int) -> None:
    blocks = [store.read(name, stage.blocks_of) for name in NAMES] if stage.cut_caches else []
    state = store.read(STATE, stage.blocks_of) if stage.state_caches else None
    made = at_a_stretch(stage.restore(prefix, blocks, state, len(NAMES) * BLOCK))
    assert made == len(blocks) + (state is not None)


@pytest.mark.parametrize(
    ("name", "kv_bits", "dtype"),
    [
        ("llama", 0, mx.float32),
        ("llama", 0, mx.bfloat16),
        ("llama", 0, mx.float16),
        ("qwen3", 8, mx.bfloat16),
        ("qwen3", 4, mx.float32),
        ("deepseek_v3", 0, mx.float32),
    ],
)
def test_blocks_fit_any_cut_bit_by_bit(name: str, kv_bits: int, dtype: mx.Dtype, tmp_path: Path) -> None:
    heads = {"head_dim": 32} if kv_bits else {}
    stages = Stages(shared_model(CONFIGURATIONS[name] | heads, dtype=dtype), kv_bits)
    cuts = [(0, 1, 4), (0, 2, 3, 4)]
    for first in cuts:
        folder = tmp_path / "-".join(map(str, first))
        ring = stages.ring(*first)
        ring.apply(Open(1))
        ring.step(TOKENS, lane=1)
        ring.apply(Keep(1, 0, prefix=5, tokens=TOKENS.shape[1]), Reuse(2, prefix=5, tokens=2 * BLOCK))
        wanted = ring.step(TOKENS[:, 2 * BLOCK :], lane=2)
        for stage in ring.stages:
            store_blocks(stage, opened(folder), 5)
        ring.apply(Drop(1), Drop(2))
        for other in cuts:
            successor = stages.ring(*other)
            for stage in successor.stages:
                restored(stage, opened(folder), 9)
            successor.apply(Reuse(3, prefix=9, tokens=2 * BLOCK))
            assert same(successor.step(TOKENS[:, 2 * BLOCK :], lane=3), wanted), (first, other)
            successor.apply(Drop(3))


def whole(name: str) -> Stage:
    folder = shared_model(CONFIGURATIONS[name])
    config = read_config(folder)
    return load(folder, 0, config.get("text_config", config)["num_hidden_layers"])


WITHOUT_CACHES = {"nemotron-nas", "nemotron-nas/first"}
"""They have layers without caches. A stage of nothing else has no KV."""
NOT_KEPT = {"llama4": "a cache of chunks", "phi3small": "see CHUNKED", "plamo3": "see CHUNKED"} | {
    name: "mlx-vlm's caches" for name, config in CONFIGURATIONS.items() if module_of(config) in OF_MLX_VLM
}
MANY_CHUNKS = [
    (name, chunks) for name in ("gemma3_text", "gpt_oss", "qwen3_next") for chunks in ((512,), (5, 250, 257))
]


@pytest.mark.parametrize("name", sorted(CONFIGURATIONS))
def test_every_architecture_of_mlx_lm_is_kept_on_disks_but_for_three(name: str) -> None:
    assert bool(whole(name).blocks_of) == (name not in NOT_KEPT)


@pytest.mark.parametrize(
    ("name", "chunks"),
    [*((name, (300, 212)) for name in sorted(CONFIGURATIONS.keys() - NOT_KEPT.keys() - WITHOUT_CACHES)), *MANY_CHUNKS],
    ids=str,
)
def test_states_and_blocks_fit_any_cut_bit_by_bit(name: str, chunks: tuple[int, ...], tmp_path: Path) -> None:
    """Windows and recurrent states are known as they were behind the last block, whatever the session does next."""
    positions = {"n_positions": 1024} if "n_positions" in CONFIGURATIONS[name] else {}
    stages, plan = Stages(shared_model(CONFIGURATIONS[name] | positions)), whole(name).plan
    cuts = [(0, cut, plan.layers) for cut in {*plan.cuts[:1], *plan.cuts[-1:]}] or [(0, plan.layers)]
    for first in cuts:
        folder = tmp_path / "-".join(map(str, first))
        ring = stages.ring(*first)
        ring.apply(Open(1))
        at = 0
        for length in chunks:
            ring.step(TOKENS[:, at : at + length], lane=1)
            at += length
        ring.apply(Store(1, CHAIN, state=True))
        wanted = ring.step(TOKENS[:, at:], lane=1)
        for token in (5, 6, 7):
            ring.step(mx.array([[token]]), lane=1)
        for stage in ring.stages:
            store = opened(folder)
            if stage.cut_caches:
                store_blocks(stage, store, 1)
            if stage.state_caches:
                state = stage.state(1)
                assert state is not None
                assert stage.state(1) is None  # its memory is free
                store.write("m", STATE, state)
        ring.apply(Drop(1))
        for other in cuts:
            successor = stages.ring(*other)
            for stage in successor.stages:
                restored(stage, opened(folder), 9)
            successor.apply(Reuse(3, prefix=9, tokens=2 * BLOCK))
            assert same(successor.step(TOKENS[:, 2 * BLOCK :], lane=3), wanted), (first, other)
            successor.apply(Drop(3))


def test_a_state_after_single_steps_or_beside_other_sessions_is_none() -> None:
    stage = Stages(shared_model(CONFIGURATIONS["gemma3_text"])).ring(0, 4).stages[0].sibling()
    for lane in (1, 2):
        stage.lanes.apply(Open(lane))
        stage.run(lane, TOKENS[:, : BLOCK - 1])
    stage.run(1, TOKENS[:, :1])
    chain = CHAIN[: len(CHAIN) // 2]
    stage.lanes.apply(Store(1, chain, state=True))
    stage.lanes.apply(Store(2, chain, state=True))
    stage.lanes.apply(Store(7, chain, state=True))
    assert [stage.state(number) for number in (1, 2, 7)] == [None] * 3


def like(block: Block, **changes: Any) -> Block:
    return {k: {key: replace(tensor, **changes) for key, tensor in each.items()} for k, each in block.items()}


WRONG: dict[str, Callable[[Block], Block]] = {
    "no caches": lambda _: {},
    "no tensors": lambda block: {k: {} for k in block},
    "a cache without tensors": lambda block: {**block, 2: {}},
    "no values": lambda block: {k: {"0.keys": each["0.keys"]} for k, each in block.items()},
    "a part more": lambda block: {k: {**each, "1.keys": each["0.keys"]} for k, each in block.items()},
    "another dtype": lambda block: like(block, dtype="uint32"),
    "fewer heads": lambda block: like(block, shape=(1, 1, BLOCK, 16), data=bytes(BLOCK * 64)),
    "other heads of the same size": lambda block: like(block, shape=(1, 1, BLOCK, 32)),
    "fewer tokens": lambda block: like(block, shape=(1, 2, BLOCK // 2, 16), data=bytes(BLOCK * 64)),
    "two rows": lambda block: like(block, shape=(2, 1, BLOCK, 16)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_block_that_this_stage_could_not_have_made_ends_a_prefix(wrong: str) -> None:
    stage = Stages(shared_model(CONFIGURATIONS["llama"])).ring(0, 4).stages[0].sibling()
    ring_kv = RingKv(stage, Faults())
    tensor = Tensor("float32", (1, 2, BLOCK, 16), bytes(BLOCK * 128))
    good = {k: {"0.keys": tensor, "0.values": tensor} for k in range(4)}
    assert at_a_stretch(ring_kv.restore(7, [WRONG[wrong](good)], None, BLOCK)) == 0
    assert stage.lanes.find(7, stage.leftover) is None
    assert at_a_stretch(ring_kv.restore(7, [dict(good), WRONG[wrong](good), good], None, 3 * BLOCK)) == 1
    found = stage.lanes.find(7, stage.leftover)
    assert found
    kept, _ = found
    assert kept.positions == [cache.offset for cache in kept.caches[:1]] == [BLOCK]


@pytest.mark.parametrize("name", ["llama", "deepseek_v3"])
def test_a_block_of_a_running_session_is_that_of_a_prefix(name: str) -> None:
    """Also of a row among others, which are longer or shorter."""
    stage = Stages(shared_model(CONFIGURATIONS[name])).ring(0, 4).stages[0].sibling()
    long = prompt(TOKENS.shape[1] + 70, seed=2)
    for lane, tokens in ((1, TOKENS), (2, long), (3, TOKENS[:, :30])):
        stage.lanes.apply(Open(lane))
        stage.run(lane, tokens)
    stage.lanes.apply(Keep(1, 0, prefix=5, tokens=TOKENS.shape[1]))
    wanted = [stage.block(5, index) for index in range(2)]
    assert [stage.block(1, index) for index in range(3)] == [*wanted, None]
    for source in (3, 1, 2):
        stage.lanes.apply(Merge(9, source))
    assert [stage.block(1, index) for index in range(3)] == [*wanted, None]
    assert stage.block(2, 0) not in (None, wanted[0])
    assert stage.block(3, 0) is None
    stage.lanes.apply(Filter(9, (2, 1)))
    stage.lanes.leave(stage.leftover)
    assert [stage.block(1, index) for index in range(2)] == wanted
    stage.leftover.clear()
    assert stage.block(1, 0) is None


def test_a_block_that_is_not_finite_is_none() -> None:
    stage = Stages(shared_model(CONFIGURATIONS["llama"])).ring(0, 4).stages[0].sibling()
    stage.lanes.apply(Open(1))
    stage.run(1, TOKENS)
    cache = stage.lanes.lane(1).caches[2]
    cache.values[0, 1, BLOCK + 3, 5] = float("nan")
    assert stage.block(1, 0)
    assert stage.block(1, 1) is None


def test_a_prefix_that_has_gone_has_no_blocks_and_one_that_was_left_has() -> None:
    stage = Stages(shared_model(CONFIGURATIONS["llama"])).ring(0, 4).stages[0].sibling()
    stage.lanes.apply(Open(1))
    stage.run(1, TOKENS)
    stage.lanes.apply(Keep(1, 0, prefix=5, tokens=TOKENS.shape[1]))
    assert stage.block(6, 0) is None
    assert stage.block(5, 2) is None
    before = stage.block(5, 1)
    stage.lanes.leave(stage.leftover)
    assert stage.block(5, 1) == before
    stage.leftover.clear()
    assert stage.block(5, 1) is None
