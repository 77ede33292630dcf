"""What a placement depends on of the nodes' reports, without the noise: equal from one look to the next if nothing happened."""

from collections.abc import Sequence
from dataclasses import replace

from node.core.types import Link, LoadState, Memory, NodeReport

NOISE = 0.2
NOISE_MS = 0.3
"""A round trip counts as changed when it differs by more than both from the one that was taken last: a smoothed probe of an
idle link wavers by less, and no decision hangs on less."""


class Steady:
    def __init__(self) -> None:
        self._rtt_ms: dict[tuple[str, str], float] = {}
        """Round trips as they were taken last, by the nodes from and to which they were measured."""

    def reports(self, nodes: Sequence[NodeReport]) -> tuple[NodeReport, ...]:
        """The reports with only what placing looks at, by id."""
        present = {node.info.id for node in nodes}
        self._rtt_ms = {pair: rtt for pair, rtt in self._rtt_ms.items() if pair[0] in present}
        return tuple(self._bare(node) for node in sorted(nodes, key=lambda node: node.info.id))

    def _bare(self, node: NodeReport) -> NodeReport:
        return NodeReport(
            info=node.info,
            memory=Memory(node.memory.total, node.memory.usable),
            loads=tuple(
                replace(load, progress=1.0, state=LoadState.READY, error="")
                for load in node.loads
                if load.state in (LoadState.READY, LoadState.ENDED)
            ),
            models=node.models,
            min_stages=node.min_stages,
            links=tuple(Link(link.to, "", self._steady_ms(node.info.id, link)) for link in node.links),
            draining=node.draining,
            idle=node.idle,
        )

    def _steady_ms(self, node: str, link: Link) -> float:
        """Infinite for a link that is lost, which is never noise."""
        taken = self._rtt_ms.get((node, link.to), -1.0)
        if taken < 0 or abs(link.rtt_ms - taken) > max(NOISE_MS, NOISE * min(taken, link.rtt_ms)):
            taken = self._rtt_ms[node, link.to] = link.rtt_ms
        return taken
