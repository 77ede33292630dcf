"""The cluster as one node sees it."""

from dataclasses import dataclass
from enum import StrEnum

from node.core.reports import NodeReport
from node.core.rings import Placement


class NodeState(StrEnum):
    """State of a peer, as a node sees it."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    FAILED = "failed"
    LEFT = "left"
    REFUSED = "refused"
    """It has another protocol version, or another secret."""


PROCESS_ENDED = "its process has ended"
"""Why a node has failed whose machine still answers."""


PRESENT = (NodeState.ALIVE, NodeState.SUSPECT)
"""States of a present node. Suspects count: most recover, and their rings work until they are declared failed."""


@dataclass(frozen=True, slots=True)
class PeerView:
    """A node, as seen by this one."""

    report: NodeReport
    state: NodeState
    last_seen_s: float = 0.0
    """Seconds since its last message; 0 for this node itself."""
    reason: str = ""
    """Why it is refused or failed, for users."""
    gone_s: float = 0.0
    """Seconds since it was declared failed, left or refused; 0 for a present one."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The state of the cluster at one moment, as a node sees it."""

    self_id: str
    term: int
    head: str
    """Id of the head; empty if there is none."""
    peers: tuple[PeerView, ...]
    """All known nodes, including this one."""
    placement: Placement

    @property
    def by_id(self) -> dict[str, PeerView]:
        """The nodes, each by its id."""
        return {peer.report.info.id: peer for peer in self.peers}
