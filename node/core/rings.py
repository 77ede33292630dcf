"""Rings, and the placement that decides on them. Messages on the wire have the same fields."""

from dataclasses import dataclass

from node.core.models import ModelSpec, ModelVersion, Shard


@dataclass(frozen=True, slots=True, order=True)
class Fence:
    """Number of a head's decision, ordered by (term, epoch). A stage refuses frames with another one than its ring's."""

    term: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class StageSpec:
    """The layers [start, end) that a node holds in a ring."""

    node: str
    start: int
    end: int


RingPlace = tuple[str, tuple[StageSpec, ...]]
"""Model and stages of a ring."""


@dataclass(frozen=True, slots=True)
class Ring:
    """Nodes that together hold one whole copy of a model. The first is the driver."""

    id: str
    version: ModelVersion
    stages: tuple[StageSpec, ...]
    context: int
    """Maximum sequence length that it accepts, in tokens."""
    max_sessions: int
    """Number of sessions of that length that memory is reserved for."""
    shared_ends: bool = False
    """Whether every stage needs the files of embedding and LM head."""
    fence: Fence = Fence()
    """Fence of the placement that created it. Later placements that keep the ring keep its fence, too."""
    retiring: bool = False
    """Whether another ring replaces it: it serves until that one is ready, then finishes or hands over its sessions."""
    draft: Shard | None = None
    """All layers of a draft model, or an MTP layer, which follows a model's layers: the driver holds them, too. None without one,
    and with one stage."""
    gain: float = 0.0
    """How many times as fast as on one node, which could hold the model, a single stream is by estimate. That is why the ring has
    more stages than it needs; 0 if it is not.
    """

    @property
    def model(self) -> str:
        return self.version.model

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(stage.node for stage in self.stages)

    @property
    def driver(self) -> str:
        return self.stages[0].node

    def after(self, node: str) -> str:
        """The next node of the ring; after the last comes the driver."""
        return self.nodes[(self.nodes.index(node) + 1) % len(self.nodes)]

    def before(self, node: str) -> str:
        """The node whose frames come to this one."""
        return self.nodes[self.nodes.index(node) - 1]

    @property
    def place(self) -> RingPlace:
        """Model and stages: a ring finds the weights in memory that another ring of the same place has left, and its KV
        if both have the same context and sessions.
        """
        return self.model, self.stages


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why a wanted model has no ring."""

    model: str
    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """Decision of the head: the rings of each wanted model."""

    fence: Fence = Fence()
    head: str = ""
    rings: tuple[Ring, ...] = ()
    refused: tuple[Refusal, ...] = ()
    specs: tuple[ModelSpec, ...] = ()
    """Specs of the wanted models. The next head might not find them itself, if no node has a whole model."""

    @property
    def models(self) -> frozenset[str]:
        """Ids of the models that have a ring, or are refused."""
        return frozenset([ring.model for ring in self.rings] + [refusal.model for refusal in self.refused])
