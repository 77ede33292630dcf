"""Which of a node's measurements count."""

from node.core.models import ModelVersion, Shard
from node.core.reports import Speed
from node.core.rings import StageSpec
from node.core.row_family import RowFamily
from node.ring.speeds import MOST_SPEEDS, REMEASURE_S, Speeds, slowest_token_s

SHARD = Shard(ModelVersion("m"), 0, 8)
KINDS = frozenset({"layer"})


def noted(*rates: float, prompts: float = 100.0) -> Speeds:
    speeds = Speeds()
    for at, rate in enumerate(rates):
        speeds.note(Speed(SHARD, rate, prompts), float(at))
    return speeds


def agreed(speeds: Speeds) -> list[float]:
    return [speed.bytes_per_s for speed in speeds.agreed()]


def test_one_measurement_does_not_count():
    assert agreed(noted(50.0)) == []
    assert agreed(noted(50.0, 45.0)) == agreed(noted(45.0, 50.0)) == [50.0]


def test_the_best_one_needs_another_like_it():
    assert agreed(noted(6.0, 90.0)) == agreed(noted(90.0, 6.0, 7.0)) == []
    assert agreed(noted(90.0, 6.0, 80.0)) == [90.0]


def test_what_is_known_counts_until_a_better_one_is_confirmed():
    assert agreed(noted(50.0, 50.0, 90.0)) == [50.0]
    assert agreed(noted(50.0, 50.0, 90.0, 40.0)) == [50.0]
    assert agreed(noted(50.0, 50.0, 90.0, 85.0)) == [90.0]


def test_the_rate_of_a_prompt_has_to_agree_too_whatever_the_number_of_layers():
    speeds = noted(50.0, prompts=30.0)
    speeds.note(Speed(SHARD, 50.0, 100.0), 1.0)
    assert agreed(speeds) == []
    speeds.note(Speed(Shard(ModelVersion("m"), 0, 4), 49.0, 200.0), 2.0)
    assert list(speeds.agreed()) == [Speed(Shard(ModelVersion("m"), 0, 4), 50.0, 200.0)]


def test_the_head_is_known_from_the_best_measurement_of_a_shard_with_it():
    speeds, later = noted(50.0), Shard(ModelVersion("m"), 4, 8)
    for shard, head_s in ((SHARD, 0.004), (SHARD, 0.003), (later, 0.0), (SHARD, 0.005)):
        speeds.note(Speed(shard, 50.0, 100.0, head_s), 1.0)
        (known,) = speeds.agreed()
        assert known.head_s == (0.004 if head_s == 0.004 else 0.003)


def test_one_rate_that_was_disturbed_while_the_other_was_best_does_not_keep_them_from_agreeing():
    speeds = noted(50.0, prompts=10.0)
    for at in (1.0, 2.0):
        speeds.note(Speed(SHARD, 49.0, 100.0), at)
    assert agreed(speeds) == [50.0]


def test_a_model_is_not_measured_again_soon_once_its_speed_is_known():
    speeds, other = noted(50.0), Shard(ModelVersion("m"), 4, 8)
    speeds.note_rows(SHARD, KINDS, ((1,),), {})
    assert speeds.is_stale(SHARD, 1.0)
    speeds.note(Speed(SHARD, 50.0, 100.0), 1.0)
    assert not speeds.is_stale(SHARD, REMEASURE_S)
    assert speeds.is_stale(other, REMEASURE_S), "its kernels may be others"
    speeds.note_rows(other, KINDS, ((1,),), {})
    assert not speeds.is_stale(other, REMEASURE_S)
    assert speeds.is_stale(SHARD, 1.0 + REMEASURE_S)
    assert speeds.is_stale(Shard(ModelVersion("m", "2"), 0, 8), 1.0)


def test_what_is_proven_of_some_layers_is_proven_of_others_of_their_kind():
    speeds, other, third = Speeds(), Shard(ModelVersion("m"), 4, 8), Shard(ModelVersion("m"), 2, 8)
    speeds.note_rows(SHARD, frozenset({"layer", "head"}), ((1, 2, 3), (4, 5)), {1: 1.0, 2: 1.5, 3: 2.0})
    for shard in (other, Shard(ModelVersion("m", kv_bits=8), 4, 8)):
        speeds.derive_rows(shard, frozenset({"layer"}), ahead=True)
        assert speeds.groups(shard) == (), "steps of one token take less where they begin ahead"
        speeds.derive_rows(shard, frozenset({"layer"}))
    assert speeds.groups(Shard(ModelVersion("m", kv_bits=8), 4, 8)) == ()
    assert speeds.families(other) == (RowFamily(((1, 1.0), (2, 1.5), (3, 2.0))),)
    speeds.derive_rows(third, frozenset({"layer", "expert"}))
    assert speeds.groups(third) == (), "one kind is new"
    speeds.note_rows(Shard(ModelVersion("m"), 3, 4), frozenset({"expert"}), ((1, 2), (3, 4, 5)), {})
    speeds.derive_rows(third, frozenset({"layer", "expert"}))
    assert speeds.groups(third) == ((1, 2), (3,), (4, 5))


def test_seconds_of_other_layers_count_until_there_are_own_ones():
    speeds, other = Speeds(), Shard(ModelVersion("m"), 0, 32)
    speeds.note_rows(SHARD, KINDS, ((1, 2),), {1: 1.0, 2: 1.6})
    speeds.derive_rows(other, KINDS)
    assert speeds.families(other) == (RowFamily(((1, 1.0), (2, 1.6))),)
    speeds.note_rows(other, KINDS, ((1, 2),), {1: 10.0, 2: 12.0})
    assert speeds.families(other) == (RowFamily(((1, 1.0), (2, 1.2))),)


def test_layers_that_were_not_tried_prove_nothing_of_others():
    speeds, other = Speeds(), Shard(ModelVersion("m"), 4, 8)
    speeds.note_rows(SHARD, frozenset({"layer", "head"}), ((1,),), {})
    speeds.derive_rows(other, frozenset({"layer"}))
    assert speeds.is_stale(other, 1.0)
    assert speeds.groups(other) == ()


def test_the_models_that_were_measured_last_are_remembered():
    speeds = noted(50.0, 50.0)
    for number in range(MOST_SPEEDS):
        for at in (1.0, 2.0):
            speeds.note(Speed(Shard(ModelVersion(f"m{number}"), 0, 8), 1.0 + number, 100.0), at)
    assert agreed(speeds) == [1.0 + number for number in range(MOST_SPEEDS)]


def test_families_have_what_their_steps_cost_by_the_quickest_of_each():
    speeds = Speeds()
    assert speeds.families(SHARD) == speeds.groups(SHARD) == ()
    groups = ((1,), (2, 3, 4), (5,))
    speeds.note_rows(SHARD, KINDS, groups, {1: 2.0, 2: 2.4, 3: 5.0, 4: 1.9})
    speeds.note_rows(SHARD, KINDS, groups, {1: 2.2, 2: 3.0, 3: 2.8, 4: 2.5})
    assert speeds.groups(SHARD) == groups
    assert speeds.families(SHARD) == (RowFamily(), RowFamily(((2, 1.2), (3, 1.4), (4, 1.0))))
    assert speeds.families(Shard(ModelVersion("m"), 4, 8)) == ()


def test_a_shard_with_one_token_alone_says_nothing_of_families():
    speeds = Speeds()
    speeds.note_rows(SHARD, KINDS, ((1,),), {})
    assert speeds.families(SHARD) == ()
    assert speeds.groups(SHARD) == ((1,),)


def test_the_shards_whose_rows_were_tried_last_are_remembered():
    speeds = Speeds()
    for number in range(MOST_SPEEDS + 1):
        speeds.note_rows(Shard(ModelVersion("m"), 0, number), KINDS, ((1,),), {})
    assert speeds.groups(Shard(ModelVersion("m"), 0, 0)) == ()
    assert speeds.groups(Shard(ModelVersion("m"), 0, 1)) == ((1,),)


def test_the_slowest_stage_counts_by_its_own_layers_and_speed():
    stages = [StageSpec("a", 0, 4), StageSpec("b", 4, 6), StageSpec("c", 6, 8)]
    quick, slow, never = Speed(SHARD, 1.0, 100.0), Speed(SHARD, 1.0, 10.0), Speed(SHARD, 1.0, 0.0)
    assert slowest_token_s(stages, {}) == slowest_token_s(stages, {"a": never}) == 0
    assert slowest_token_s(stages, {"a": quick, "b": quick, "c": quick}) == 4 / 800
    assert slowest_token_s(stages, {"a": quick, "b": slow, "c": quick}) == 2 / 80
    assert slowest_token_s(stages, {"b": quick}) == 4 / 800, "others are as quick as those that are known"
