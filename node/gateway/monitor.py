"""What operators ask of a node: the cluster's status, the node's health and its metrics."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from node.cluster.agent import Agent
from node.cluster.readiness import usable_rings
from node.cluster.status import build_status
from node.core.pool import Pools
from node.core.reports import NodeMetrics, Severity
from node.core.views import PeerView
from node.gateway.router import Router
from node.ring.lifecycle import Rings
from node.text.grammars import Grammars
from node.text.sandbox import SandboxServer


@dataclass(slots=True)
class Monitor:
    agent: Agent
    rings: Rings
    router: Router
    pools: Pools
    grammars: Grammars
    sandboxes: SandboxServer
    open_cluster: bool
    """Whether nodes need no secret to join."""
    other_secret: Callable[[], Sequence[PeerView]]
    """Returns the nodes that have another one."""

    def status(self) -> dict[str, Any]:
        """State of the cluster as this node sees it, ready for JSON."""
        return build_status(self.agent.view(), open_cluster=self.open_cluster, other_secret=self.other_secret())

    def health(self) -> dict[str, Any]:
        """Whether this node is alive (`status` is "ok" then), and what it can serve. Small and immediate."""
        view = self.agent.view()
        ready = {ring.model for ring in view.placement.rings if usable_rings(view, ring.model)}
        stuck = self.pools.stuck()
        stuck += ["grammar"] if self.grammars.is_stuck else []
        stuck += ["sandbox"] if self.sandboxes.has_ended else []
        full = [name for name, _ in self.pools.full()]
        state: dict[str, Any] = {"status": "full", "full": full} if full else {"status": "ok"}
        if stuck:
            state = {"status": "stuck", "stuck": stuck}
        warnings = {issue["code"] for issue in self.status()["warnings"] if issue["severity"] != Severity.INFO}
        return {**state, "node": self.agent.info.name, "models": sorted(ready), "warnings": sorted(warnings)}

    def metrics(self) -> NodeMetrics:
        rings, agent = self.rings, self.agent
        job_s = next((report.job_s for report in agent.alive() if report.info.id == agent.info.id), 0.0)
        return NodeMetrics(
            rings.traffic(), rings.kv_bytes(), rings.memory_used(), self.router.recoveries, agent.lag_s, job_s
        )
