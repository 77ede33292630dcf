"""Reduces node reports to what a placement depends on, without noise: equal between calls if nothing happened."""

from collections.abc import Sequence
from dataclasses import replace

from node.core.types import Link, Memory, NodeReport, StageState

NOISE = 0.2
NOISE_MS = 0.3
"""A round trip has changed if it differs by more than both (relative and in ms) from the value last used: a smoothed
probe of an idle link varies by less, and no decision depends on less.
"""


class Normalizer:
    def __init__(self) -> None:
        self._rtt_ms: dict[tuple[str, str], float] = {}
        """Round trips last used, by (measuring node, peer)."""

    def normalize(self, nodes: Sequence[NodeReport]) -> tuple[NodeReport, ...]:
        """The reports, reduced to what placement uses, sorted by id."""
        present = {node.info.id for node in nodes}
        self._rtt_ms = {pair: rtt for pair, rtt in self._rtt_ms.items() if pair[0] in present}
        return tuple(self._normalize(node) for node in sorted(nodes, key=lambda node: node.info.id))

    def _normalize(self, node: NodeReport) -> NodeReport:
        return NodeReport(
            info=node.info,
            memory=Memory(node.memory.total, node.memory.usable),
            stages=tuple(
                replace(stage, progress=1.0, state=StageState.READY, error="")
                for stage in node.stages
                if stage.state in (StageState.READY, StageState.ENDED)
            ),
            models=node.models,
            min_stages=node.min_stages,
            links=tuple(Link(link.to, "", self._stable_ms(node.info.id, link)) for link in node.links),
            draining=node.draining,
            idle=node.idle,
            speeds=node.speeds,
        )

    def _stable_ms(self, node: str, link: Link) -> float:
        """Round trip without noise; infinite for a lost link, which is never noise."""
        taken = self._rtt_ms.get((node, link.to), -1.0)
        if taken < 0 or abs(link.rtt_ms - taken) > max(NOISE_MS, NOISE * min(taken, link.rtt_ms)):
            taken = self._rtt_ms[node, link.to] = link.rtt_ms
        return taken
