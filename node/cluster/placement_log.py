"""Logs what a placement changes: each ring and each refusal when it comes."""

import logging
from collections.abc import Callable

from node.core.rings import Placement, Refusal

log = logging.getLogger(__name__)


class PlacementLog:
    def __init__(self, name_of: Callable[[str], str]) -> None:
        """`name_of`: returns the name of a node, given its id."""
        self._name_of = name_of
        self._refusals: dict[str, Refusal] = {}
        """The last logged one of each model: one that is tried again in between is refused again for the same reason."""

    def tell(self, placement: Placement, before: Placement) -> None:
        fence = placement.fence
        for ring in placement.rings:
            if ring not in before.rings:
                stages = (f"{self._name_of(stage.node)} {stage.start}-{stage.end - 1}" for stage in ring.stages)
                verb = "retires from" if ring.retiring else "on"
                log.info("placement %d.%d: %s %s %s", fence.term, fence.epoch, ring.model, verb, ", ".join(stages))
        for refusal in placement.refused:
            if self._refusals.get(refusal.model) != refusal:
                log.warning("placement: %s: %s", refusal.model, refusal.message)
                self._refusals[refusal.model] = refusal
        wanted = placement.models
        self._refusals = {model: refusal for model, refusal in self._refusals.items() if model in wanted}
