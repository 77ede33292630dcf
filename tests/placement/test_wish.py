"""What a user wishes of one model, against the rules for all."""

from dataclasses import replace

from node.core.models import Wish
from node.core.rings import Fence
from node.placement.place import Rules, place
from tests.placement.test_placement import GB, model, node


def placed(wish, *nodes, rules=None, current=None):
    spec = replace(model(layers=8), wish=wish)
    plan = place([spec], nodes, rules, fence=Fence(1, 1), head="a", current=current)
    assert not plan.refused
    return plan


NODES = [node(name, 16 * GB) for name in "abc"]


def test_a_model_is_spread_over_as_many_nodes_as_wished():
    assert len(placed(Wish(stages=2), *NODES).rings[0].stages) == 2
    assert len(placed(Wish(stages=5), *NODES).rings[0].stages) == 3
    assert len(placed(Wish(stages=2), *NODES, rules=Rules(min_stages=3)).rings[0].stages) == 2


def test_a_wished_context_replaces_that_of_the_rules():
    assert {ring.context for ring in placed(Wish(context=1234), *NODES).rings} == {1234}
    longest = model(layers=8).max_context
    assert placed(Wish(context=longest + 1), *NODES).rings[0].context == longest


def test_a_ring_with_the_wished_context_stays_and_another_goes():
    before = placed(Wish(context=1234), *NODES[:1])
    assert placed(Wish(context=1234), *NODES[:1], current=before).rings == before.rings
    assert placed(Wish(context=2000), *NODES[:1], current=before).rings[0].context == 2000
