"""Logs what changes in the cluster: its nodes, its head, and the rings and refusals of its placement."""

import logging
from collections.abc import Callable

from node.core.rings import Placement, Refusal
from node.members.election import BecameHead, Effect, Follow, HeadLost, SteppedDown
from node.members.membership import Change, Changed, Joined

log = logging.getLogger(__name__)


class ClusterLog:
    def __init__(self, cluster: str, name_of: Callable[[str], str]) -> None:
        """`name_of`: returns the name of a node, given its id."""
        self._cluster = cluster
        self._name_of = name_of
        self._refusals: dict[str, Refusal] = {}
        """The last logged one of each model: one that is tried again in between is refused again for the same reason."""

    def tell(self, event: Effect | Change) -> None:
        match event:
            case BecameHead(term):
                log.info("this node is head of cluster %s, term %d", self._cluster, term)
            case Follow(head, term):
                log.info("head is %s, term %d", self._name_of(head), term)
            case SteppedDown(term, reason):
                log.info("no longer head of term %d: %s", term, reason)
            case HeadLost(head, term):
                log.warning("head %s of term %d is lost", self._name_of(head), term)
            case Joined(node):
                log.info("%s joined", self._name_of(node))
            case Changed(node, state, reason):
                log.info("%s is %s%s", self._name_of(node), state, f": {reason}" if reason else "")

    def tell_placement(self, placement: Placement, before: Placement, *, is_over: bool = False) -> None:
        """`is_over`: no node takes a model any more, so that a refusal is no news."""
        fence = placement.fence
        for ring in placement.rings:
            if ring not in before.rings:
                stages = (f"{self._name_of(stage.node)} {stage.start}-{stage.end - 1}" for stage in ring.stages)
                verb = "retires from" if ring.retiring else "on"
                log.info("placement %d.%d: %s %s %s", fence.term, fence.epoch, ring.model, verb, ", ".join(stages))
        for refusal in placement.refused:
            if not is_over and self._refusals.get(refusal.model) != refusal:
                log.warning("placement: %s: %s", refusal.model, refusal.message)
                self._refusals[refusal.model] = refusal
        wanted = placement.models
        self._refusals = {model: refusal for model, refusal in self._refusals.items() if model in wanted}
