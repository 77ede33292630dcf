"""Lanes and the prompts on their way into one."""

from node.core.generation import GenerateRequest
from node.ring.lane import Lane
from node.ring.prefill import Prefill
from node.ring.session import Session, Slot


def slot(**state: bool) -> Slot:
    return Slot(Session(GenerateRequest("x", "m", (1, 2, 3), 5)), **state)


def test_a_lane_forgets_who_hung_up_before_the_step_of_its_prompt() -> None:
    stays, left = slot(), slot(gone=True)
    lane = Lane(0, prefilling=[stays, left])
    lane.join([stays], 7)
    assert lane.prefilling == []
    assert lane.slots() == [stays]


def test_prompts_have_no_more_to_do_for_who_is_gone() -> None:
    stays, left = slot(), slot(gone=True)
    stays.sent = 3
    assert not Prefill(7, Lane(0), [stays, left], 0).ready
