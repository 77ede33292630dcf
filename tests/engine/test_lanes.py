"""Sessions in one lane: cut stages compute the whole model's bits for a batch, and each session gets its own text."""

import mlx.core as mx
import pytest

from node.core.errors import PippinError
from node.core.frames import Drop, Filter, Keep, Merge, Open, Reuse
from node.engine.architectures import UNBATCHABLE
from node.engine.plan import make_plan
from node.engine.tensor_codec import token_array
from tests.engine.configurations import CONFIGURATIONS, each
from tests.engine.models import Ring, Stages, Whole, likeliest, plan_of, prompt, same, shared_model

LENGTHS = (5, 14, 11)
"""These lengths and the padding between them share no factor with each other, or with a block or window size."""
BATCHED = [name for name in CONFIGURATIONS if name.partition("/")[0] not in UNBATCHABLE and name != "llama4"]


def prefilled(whole, ring):
    """Prefill three sessions separately, on both. Return the whole model's caches and the next tokens; the ring's lanes
    are 1, 2, 3.
    """
    wholes, tokens = [], []
    for number, length in enumerate(LENGTHS, start=1):
        one = whole.fresh()
        logits = one.step(prompt(length, seed=number))
        ring.apply(Open(number))
        assert same(ring.step(prompt(length, seed=number), lane=number), logits)
        wholes.append(one)
        tokens.append(likeliest(logits))
    return wholes, tokens


def merged(caches):
    """Merge all at once, as mlx-lm does."""
    return [together[0].merge(list(together)) for together in zip(*caches, strict=True)]


@pytest.mark.parametrize("name", each(BATCHED))
def test_merged_and_filtered_lanes_equal_the_whole_batch(name):
    directory = shared_model(CONFIGURATIONS[name])
    plan = plan_of(directory)
    assert plan.batchable
    whole = Whole(directory)
    middle = plan.cuts[len(plan.cuts) // 2]
    ring = Stages(directory).ring(0, middle, plan.layers)
    wholes, tokens = prefilled(whole, ring)
    alone = [(one, token) for one, token in zip(wholes, tokens, strict=True)]
    batch = whole.fresh()
    batch.caches = merged([one.caches for one in wholes[:2]])
    for cache, other in zip(batch.caches, merged([wholes[2].caches]), strict=True):
        cache.extend(other)
    ring.apply(Merge(9, 1), Merge(9, 2), Merge(9, 3))

    step = mx.concatenate(tokens)
    for _ in range(4):
        expected = batch.step(step)
        got = ring.step(step, lane=9)
        assert same(got, expected)
        for row, (one, token) in enumerate(alone):
            solo = one.step(token)
            assert mx.allclose(_finite(got[row]), _finite(solo[0]), rtol=1e-3, atol=1e-3), f"row {row} is not itself"
            alone[row] = (one, likeliest(solo))
        step = mx.concatenate([token for _, token in alone])

    for cache in batch.caches:
        cache.filter([2, 1])
    ring.apply(Filter(9, (2, 1)))
    for _ in range(2):
        expected = batch.step(step[mx.array([2, 1])])
        assert same(ring.step(step[mx.array([2, 1])], lane=9), expected)


def _finite(logits):
    return mx.where(mx.isinf(logits), 0, logits)


@pytest.mark.parametrize("name", ["longcat_flash_ngram", "qwen3_next", "gemma3_text", "mamba2", "deepseek_v3"])
def test_sessions_of_one_token_share_a_lane(name):
    directory = shared_model(CONFIGURATIONS[name])
    ring, whole = Stages(directory).ring(0, plan_of(directory).layers), Whole(directory)
    alone, tokens = [], []
    for number, length in enumerate((1, 5, 2), start=1):
        alone.append(whole.fresh())
        ring.apply(Open(number))
        tokens.append(likeliest(alone[-1].step(prompt(length, seed=number))))
        ring.step(prompt(length, seed=number), lane=number)
    ring.apply(Merge(9, 1), Merge(9, 2), Merge(9, 3))
    for row, logits in enumerate(ring.step(mx.concatenate(tokens), lane=9)):
        assert _close(logits[-1], alone[row].step(tokens[row])[0, -1])


@pytest.mark.parametrize("name", [*UNBATCHABLE, "llama4"])
def test_sessions_that_cannot_share_a_lane_are_refused(name):
    directory = shared_model(CONFIGURATIONS[name])
    ring = Stages(directory).ring(0, 2, 4)
    ring.apply(Open(1), Open(2))
    ring.apply(Merge(5, 1))
    with pytest.raises(PippinError, match="cannot share a lane"):
        ring.apply(Merge(5, 2))


@pytest.fixture
def llama():
    return shared_model(CONFIGURATIONS["llama/sliding"])


def test_sessions_come_and_go(llama):
    """A fourth session joins a running lane; caches of a session that is merged alone stay unchanged."""
    ring = Stages(llama).ring(0, 1, 4)
    wholes, tokens = prefilled(Whole(llama), ring)
    ring.apply(Merge(9, 1))
    assert same(ring.step(tokens[0], lane=9), wholes[0].step(tokens[0]))
    ring.apply(Merge(9, 2), Filter(9, (1,)), Merge(9, 3), Filter(9, (0,)))
    got, expected = ring.step(tokens[1], lane=9), wholes[1].step(tokens[1])
    assert mx.allclose(got, expected, atol=1e-4)
    ring.apply(Drop(9))
    assert [stage.lanes.kv_bytes for stage in ring.stages] == [0, 0]


def test_kv_bytes_are_what_the_plan_says(llama):
    ring = Stages(llama).ring(0, 2, 4)
    before = [stage.lanes.kv_bytes for stage in ring.stages]
    assert before == [0, 0]
    ring.step(prompt(5))
    plan = ring.stages[0].plan
    for stage in ring.stages:
        promised = sum(cost.bytes_for(5) for cost in plan.kv[stage.start : stage.end])
        assert 0 < stage.lanes.kv_bytes <= promised
    # 16 head dimensions, 2 key-value heads, keys and values, float32
    assert {cost.per_token for cost in plan.kv} == {16 * 2 * 2 * 4}
    assert [cost.window for cost in plan.kv] == [8, 0, 8, 0]


@pytest.mark.parametrize(
    "op", [Merge(1, 7), Merge(0, 0), Filter(7, (0,)), Filter(0, ()), Filter(0, (1,)), Filter(0, (-1,))]
)
def test_operations_that_do_not_fit_are_refused(op, llama):
    ring = Stages(llama).ring(0, 4)
    with pytest.raises(PippinError):
        ring.apply(op)


def test_steps_that_do_not_fit_are_refused(llama):
    stages = Stages(llama)
    driver, last = stages.ring(0, 2, 4).stages
    with pytest.raises(PippinError, match="no lane 3"):
        driver.run(3, prompt(2))
    with pytest.raises(PippinError, match="1 sessions, but the step has 2"):
        driver.run(0, mx.zeros((2, 1), mx.int32))
    with pytest.raises(PippinError, match="no step"):
        driver.run(0, mx.zeros((1, 0), mx.int32))
    with pytest.raises(PippinError, match="not what layer"):
        last.run(0, prompt(2))
    for shape in ((1, 2, 65), (2, 64), (1, 0, 64), (0, 1, 64)):
        with pytest.raises(PippinError, match="not what layer 2"):
            last.run(0, None, [mx.zeros(shape)])
    with pytest.raises(PippinError, match="not what layer 2"):
        last.run(0, None)
    with pytest.raises(PippinError, match="Lengths"):
        driver.run(0, prompt(2), lengths=(3,))
    assert same(driver.run(0, prompt(2))[0], driver.run(0, prompt(2))[0]) is False  # the lane continues unharmed


@pytest.mark.slow
@pytest.mark.parametrize("name", each(BATCHED))
def test_prompts_that_run_together_equal_each_alone(name):
    """Prompts in one step, of different lengths if the model pads. One is kept, and two sessions continue from it."""
    directory = shared_model(CONFIGURATIONS[name])
    plan = plan_of(directory)
    lengths = (LENGTHS, (3, 1)) if plan.pads else ((9, 9, 9), (2, 2))
    stages, whole = Stages(directory), Whole(directory)
    middle = plan.cuts[len(plan.cuts) // 2]
    begun, gone_on = ([prompt(n, seed=n + k)[0].tolist() for k, n in enumerate(each)] for each in lengths)
    one, two = (_together(stages.ring(*cut), begun, gone_on) for cut in ((0, plan.layers), (0, middle, plan.layers)))
    assert all(same(a, b) for a, b in zip(one, two, strict=True))

    first, decoded, second = two
    for row, tokens in enumerate(begun):
        alone = whole.fresh()
        logits = alone.step(mx.array([tokens], mx.int32))
        assert _close(first[row], logits[0, -1])
        assert _close(decoded[row], alone.step(likeliest(logits))[0, -1])
    for row, tokens in enumerate(gone_on):
        alone = whole.fresh()
        alone.step(mx.array([begun[1]], mx.int32))
        assert _close(second[row], alone.step(mx.array([tokens], mx.int32))[0, -1])


def _together(ring, begun, gone_on):
    """Return the logits of each after its prompt and one more token, and of the sessions that
    continue from prompt two.
    """
    ring.apply(Open(1), Open(2), Merge(1, 2), Open(3), Merge(1, 3))
    first = _prompts(ring, 1, begun)
    ring.apply(Keep(1, 1, prefix=1, tokens=len(begun[1])), Drop(9), Merge(9, 1))
    decoded = ring.step(likeliest(first[:, None]), lane=9, every=False)
    kept = len(begun[1])
    ring.apply(Drop(9), Reuse(4, 1, kept), Reuse(5, 1, kept), Merge(4, 5))
    return first, decoded, _prompts(ring, 4, gone_on)


def _prompts(ring, lane, rows):
    lengths = tuple(map(len, rows))
    return ring.step(token_array(rows), lane, lengths if len(set(lengths)) > 1 else (), every=False)


def _close(a, b):
    return mx.allclose(_finite(a), _finite(b), rtol=1e-3, atol=1e-3)


def test_padding_is_refused_where_it_would_be_wrong():
    directory = shared_model(CONFIGURATIONS["mamba"])
    ring = Stages(directory).ring(0, 4)
    ring.apply(Open(1), Merge(0, 1))
    with pytest.raises(PippinError, match="right-padded"):
        ring.step(token_array([[1, 2], [3]]), lengths=(2, 1))


def test_lanes_without_end_are_refused(llama):
    ring = Stages(llama).ring(0, 2, 4)
    with pytest.raises(PippinError, match="the maximum of a stage"):
        ring.apply(*[Open(lane) for lane in range(10_000)])
    ring.apply(*[Drop(lane) for lane in range(10_000)])
    ring.apply(Open(1))
    ring.step(prompt(5), lane=1)


def test_siblings_share_weights_and_nothing_else(llama):
    """Two rings with the same layers on a node: one replaces the other."""
    whole, plan = Whole(llama), make_plan(CONFIGURATIONS["llama"])
    first = Stages(llama).ring(0, plan.cuts[0], plan.layers)
    second = Ring([stage.sibling() for stage in first.stages])
    other = whole.fresh()
    for length in (7, 3, 1):
        assert same(first.step(prompt(length)), whole.step(prompt(length)))
        assert same(second.step(prompt(length, seed=2)), other.step(prompt(length, seed=2)))
    for stage in first.stages:
        stage.lanes.clear()
        assert stage.lanes.kv_bytes == 0
    assert same(second.step(prompt(2)), other.step(prompt(2)))
