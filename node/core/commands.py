"""What users tell the cluster: the head decides it, and all nodes follow."""

from dataclasses import dataclass

from node.core.models import Wish


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Have a model loaded for good."""

    model: str
    wish: Wish


@dataclass(frozen=True, slots=True)
class UnloadModel:
    """Have a model unloaded on all nodes."""

    model: str


@dataclass(frozen=True, slots=True)
class KeepModel:
    """Have a model unloaded once it was idle for so long, unless a user had it loaded for good."""

    model: str
    keep_s: float


@dataclass(frozen=True, slots=True)
class DrainNode:
    """Have a node's work moved to other nodes; if not `draining`, take it into use again."""

    node: str
    draining: bool


Command = LoadModel | UnloadModel | KeepModel | DrainNode
"""Models and nodes have their ids. At a gateway they have the names by which the user knows them."""
