"""Lanes, and the prefills that will join them."""

from node.core.generation import GenerateRequest
from node.ring.lane import Lane
from node.ring.prefill import Prefill
from node.ring.session import Session, Slot


def slot(**state: bool) -> Slot:
    return Slot(Session(GenerateRequest("x", "m", (1, 2, 3), 5)), **state)


def test_a_lane_drops_a_slot_that_is_gone_before_its_prompt_has_run() -> None:
    stays, left = slot(), slot(gone=True)
    lane = Lane(0, prefilling=[stays, left])
    lane.join([stays], 7)
    assert lane.prefilling == []
    assert lane.slots() == [stays]


def test_a_prefill_does_nothing_for_a_slot_that_is_gone() -> None:
    stays, left = slot(), slot(gone=True)
    stays.sent = 3
    assert not Prefill(7, Lane(0), [stays, left], 0).ready
