"""Single steps of an election; whole histories are in tests/sim."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from node.core.limits import COUNTER_LIMIT
from node.core.nodes import Memory, NodeInfo
from node.core.reports import NodeReport
from node.core.rings import Fence
from node.members.election import (
    MAX_TERM_LEAD,
    BecameHead,
    Election,
    Follow,
    HeadLost,
    PersistTerm,
    SteppedDown,
    cap_term,
)


def node(name: str, usable: int = 16, term: int = 0, head: str = "", fence: Fence | None = None) -> NodeReport:
    info = NodeInfo(name, 1, name, "home", "1", 1, (), 1, 2)
    return NodeReport(info, Memory(usable, usable), term, head, fence or Fence())


def settled(term: int = 0, *others: NodeReport, name: str = "b") -> Election:
    """An election of node b, past its settling time, with other nodes and no head."""
    election = Election(name, term)
    election.tick(-10.0, [node(name, usable=1), node("~best", usable=99), *others])
    return election


def head_of_one(term: int) -> Election:
    election = settled(term - 1)
    assert election.tick(0.0, [node("b")]) == [PersistTerm(term), BecameHead(term)]
    return election


def follower(head: str, term: int) -> Election:
    election = settled()
    assert election.tick(0.0, [node("b"), node(head, term=term, head=head)]) == [PersistTerm(term), Follow(head, term)]
    return election


def test_a_lone_node_waits_to_hear_a_head_then_claims():
    election = Election("b", 4)
    assert election.tick(100.0, [node("b")]) == []
    assert election.tick(101.9, [node("b")]) == []
    assert election.tick(102.0, [node("b")]) == [PersistTerm(5), BecameHead(5)]
    assert election.is_head
    assert election.tick(103.0, [node("b")]) == []


def test_a_head_that_exists_is_taken_at_once():
    assert Election("b").tick(0.0, [node("b", 99), node("c", 8, 7, "c")]) == [PersistTerm(7), Follow("c", 7)]


def test_of_two_heads_the_higher_term_is_taken():
    alive = [node("b"), node("c", 99, 6, "c"), node("d", 8, 7, "d")]
    assert Election("b").tick(0.0, alive) == [PersistTerm(7), Follow("d", 7)]


def test_of_two_heads_in_one_term_the_better_rank_is_taken():
    alive = [node("b"), node("c", 8, 7, "c"), node("d", 99, 7, "d"), node("a", 8, 7, "a")]
    assert Election("b").tick(0.0, alive) == [PersistTerm(7), Follow("d", 7)]


def test_more_memory_ranks_first_then_the_smaller_id():
    assert settled().tick(0.0, [node("b", 16), node("a", 8), node("c", 16)]) == [PersistTerm(1), BecameHead(1)]
    assert settled().tick(0.0, [node("b", 16), node("a", 16)]) == []
    assert settled().tick(0.0, [node("b", 16), node("c", 32)]) == []


def test_a_claim_is_above_every_term_seen():
    assert settled(3).tick(0.0, [node("b"), node("c", 8, term=9)]) == [PersistTerm(10), BecameHead(10)]


def test_a_better_ranked_joiner_changes_nothing():
    election = follower("c", 7)
    assert election.tick(1.0, [node("b"), node("c", 8, 7, "c"), node("a", 99)]) == []


def test_a_head_that_is_gone_is_replaced_by_the_best_of_the_rest():
    assert follower("c", 7).tick(1.0, [node("b"), node("d", 8)]) == [HeadLost("c", 7), PersistTerm(8), BecameHead(8)]
    assert follower("c", 7).tick(1.0, [node("b"), node("d", 99)]) == [HeadLost("c", 7)]


def test_a_head_that_gave_up_or_restarted_is_lost():
    assert follower("c", 7).tick(1.0, [node("b"), node("c", 99, 7, "")]) == [HeadLost("c", 7)]


def test_nobody_waits_for_a_head_that_restarted():
    """Otherwise it would settle first, for two seconds in which the cluster has no head."""
    alive = [node("b", fence=Fence(7, 3)), node("d", 8, 7, "c", Fence(7, 3)), node("c", 99, 7, "")]
    assert follower("c", 7).tick(1.0, alive) == [HeadLost("c", 7), PersistTerm(8), BecameHead(8)]


def test_nor_for_one_whose_disk_had_not_kept_its_term():
    """It waits for them, as they know the cluster."""
    before = node("c", 99, 6, fence=Fence())
    restarted = replace(before, info=replace(before.info, incarnation=2))
    alive = [node("b", fence=Fence(7, 3)), node("d", 8, 7, "c", Fence(7, 3)), restarted]
    assert follower("c", 7).tick(1.0, alive) == [HeadLost("c", 7), PersistTerm(8), BecameHead(8)]


def test_a_node_that_has_just_started_leaves_the_claim_to_those_that_know_the_cluster():
    alive = [node("b", 99), node("c", 8, 7, fence=Fence(7, 3))]
    assert settled(7).tick(0.0, alive) == []
    assert settled(7).tick(0.0, [node("b", 99), node("c", 8, 7)]) == [PersistTerm(8), BecameHead(8)]


def test_a_report_from_before_the_claim_says_nothing():
    assert follower("c", 7).tick(1.0, [node("b"), node("c", 99, 6, "")]) == []


def test_a_head_yields_to_a_higher_term():
    effects = head_of_one(5).tick(1.0, [node("b", 99), node("c", 8, 6, "c")])
    assert effects == [PersistTerm(6), SteppedDown(5, "c is head of term 6"), Follow("c", 6)]


def test_two_heads_of_one_term():
    winner, loser = head_of_one(5), head_of_one(5)
    assert winner.tick(1.0, [node("b", 16), node("c", 8, 5, "c")]) == [PersistTerm(6), BecameHead(6)]
    (effect,) = loser.tick(1.0, [node("b", 16), node("c", 32, 5, "c")])
    assert isinstance(effect, SteppedDown)
    assert (loser.head, loser.term) == ("", 5)
    assert loser.tick(2.0, [node("b"), node("c", 32, 6, "c")]) == [PersistTerm(6), Follow("c", 6)]


def test_nobody_takes_a_second_head_in_one_term_but_asks_for_a_higher_one():
    election = follower("c", 7)
    alive = [node("b"), node("d", 99, 7, "d")]
    assert election.tick(1.0, alive) == [HeadLost("c", 7), PersistTerm(8)]
    assert (election.head, election.term) == ("", 8)
    assert election.tick(1.1, alive) == []
    assert election.tick(2.0, [node("b"), node("d", 99, 9, "d")]) == [PersistTerm(9), Follow("d", 9)]


def test_a_lost_head_that_is_back_is_taken_again_in_its_term():
    election = follower("c", 7)
    others = node("d", 99, 7, "c")
    assert election.tick(1.0, [node("b"), others]) == [HeadLost("c", 7)]
    assert election.tick(2.0, [node("b"), others, node("c", 8, 7, "c")]) == [Follow("c", 7)]


def test_a_head_claims_above_a_node_that_has_seen_more():
    assert head_of_one(5).tick(1.0, [node("b"), node("c", 99, 9)]) == [PersistTerm(10), BecameHead(10)]


def test_a_node_whose_neighbour_follows_a_head_it_cannot_reach_waits():
    assert settled().tick(0.0, [node("b", 99), node("c", 8, 7, "far")]) == []
    election = head_of_one(5)
    (effect,) = election.tick(1.0, [node("b", 99), node("c", 8, 7, "far")])
    assert isinstance(effect, SteppedDown)
    assert election.tick(2.0, [node("b", 99), node("c", 8, 7, "")]) == [PersistTerm(8), BecameHead(8)]


def test_who_has_not_noticed_yet_that_the_head_has_ended_is_not_waited_for():
    alive = [node("b"), node("d", 8, 7, "c")]
    assert follower("c", 7).tick(1.0, alive) == [HeadLost("c", 7)]
    assert follower("c", 7).tick(1.0, alive, {"c"}) == [HeadLost("c", 7), PersistTerm(8), BecameHead(8)]


def test_a_restarted_head_does_not_take_followers_of_its_past_for_a_head():
    assert settled(7).tick(0.0, [node("b", 99), node("c", 8, 7, "b")]) == [PersistTerm(8), BecameHead(8)]


@given(st.lists(st.tuples(st.integers(0, COUNTER_LIMIT - 1), st.sampled_from(["", "c", "d", "b"])), max_size=50))
def test_whatever_peers_tell_terms_stay_such_as_peers_take(told):
    election = settled(5)
    for now, (term, head) in enumerate(told):
        before = election.term
        election.tick(float(now), [node("b"), cap_term(node("c", 99, term, head), before)])
        assert before <= election.term <= before + MAX_TERM_LEAD + 1


def test_a_node_whose_disk_fails_leaves_the_claim_to_others():
    broken = replace(node("c", 99), disk_error="full")
    assert settled().tick(0.0, [node("b"), broken]) == [PersistTerm(1), BecameHead(1)]
    own = replace(node("b", 99), disk_error="full")
    assert settled().tick(0.0, [own, node("c")]) == []
    election = head_of_one(5)
    assert election.tick(1.0, [own, node("c")]) == [], "a head stays it in a term that is on disk"
    assert election.tick(1.0, [own, node("c", term=6)]) == [SteppedDown(5, "no higher term can be saved")]


def test_a_claim_that_could_not_be_saved_was_not_made():
    election = settled(3)
    election.tick(0.0, [node("b"), node("c", term=7)])
    assert election.withdraw() == []
    assert (election.term, election.head) == (3, "")
    election = head_of_one(5)
    election.tick(1.0, [node("b", 99), node("c", 1, 5, "c")])
    assert election.withdraw() == [SteppedDown(5, "no higher term could be saved")]
    assert election.tick(2.0, [node("b"), node("c", 1, 5, "c")]) == [PersistTerm(6)], "no second head in term 5"
