"""Sessions with the same beginning, such as many with one long system prompt: it is computed once. Pure.

A session whose beginning another one is computing waits for it. If that one ends before, the next in line computes it.
A session begins with a copy of the KV of any that runs, whether its prompt is done or not.
"""

from collections.abc import Iterable

from node.ring.prefixes import common_tokens
from node.ring.session import Session, Slot

WORTH_SHARING = 256
"""Tokens that two prompts must have in common: to compute fewer takes hardly longer than to wait and copy them."""


def waits(session: Session, computing: Iterable[Slot]) -> bool:
    """Whether one of these slots is about to compute tokens with which the session begins, and enough of them."""
    return any(session.begins_with(slot, max(slot.sent + 1, slot.cached + WORTH_SHARING)) for slot in computing)


def most_shared(session: Session, running: Iterable[Slot]) -> tuple[Slot, int] | None:
    """The slot with the most KV of the session's beginning, and its tokens; None if no slot has enough."""
    alike = [slot for slot in running if slot.sent >= WORTH_SHARING and session.begins_with(slot, WORTH_SHARING)]
    most = len(session.tokens) - 1  # its last one must be computed to draw the next
    shared = [(slot, min(slot.sent, most, common_tokens(session.beginning, slot.session.beginning))) for slot in alike]
    return max(shared, key=lambda each: each[1], default=None)
