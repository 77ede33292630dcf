"""Placement: which nodes hold which layers of which models. Pure: models and node reports in, a placement out.

The aim is the least time per token: a model is placed on as few nodes as hold it with a useful context, on the quickest
ones, in the order with the quickest round trip. Each gets as many layers as it computes in the time of the others.
Nodes left over get replicas: further rings of the same model. An existing ring that is as good is kept. A new one is
made of layers that nodes still have in memory if possible, so that nothing is loaded twice. Loaded layers that no ring
needs count as free memory.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from node.core.models import ModelSpec
from node.core.reports import NodeReport
from node.core.rings import Fence, Placement, Refusal, Ring, RingPlace
from node.placement.footprint import stage_bytes
from node.placement.loaded_layers import rings_of_loaded_layers
from node.placement.search import CONTEXTS, SESSIONS, Goal, draft_of, find_ring, refusal
from node.placement.speed import TOO_SLOW, is_quicker, pace, token_ms, with_measured_head
from node.placement.split import boundaries
from node.placement.spread import Spread


@dataclass(frozen=True, slots=True)
class Rules:
    """Requirements of a placement beyond the models themselves."""

    min_stages: int = 1
    """Minimum stages of each ring, if there are as many nodes."""
    max_rings: int | None = None
    """Maximum rings of each model; None: as many as there is room for."""
    unmoved: Collection[RingPlace] | None = ()
    """Rings that may not be moved for speed alone; None: all."""
    barred: Collection[tuple[str, str]] = ()
    """(Model, node) pairs that must not be combined for now."""
    contexts: Sequence[int] = CONTEXTS
    max_sessions: Sequence[int] = SESSIONS
    spreads: Sequence[Spread] = ()
    """Models whose rings have a number of stages by choice."""
    idle: Collection[str] = ()
    """Those of them that have no request, so that their rings may go before the new one is there."""


def place(
    models: Sequence[ModelSpec],
    nodes: Sequence[NodeReport],
    rules: Rules | None = None,
    *,
    fence: Fence,
    head: str,
    current: Placement | None = None,
) -> Placement:
    """Give every model a ring on the nodes, or a refusal, and replicas where room is left. Earlier models take
    precedence.

    Existing rings of `current` keep their memory before other models are placed. Only if a model finds no room do all
    get fewer sessions, and then shorter contexts: better all models with less than one with plenty. Replicas make room
    for any model's first ring. Nothing new is placed on a draining node; an existing ring there stays as long as its
    model has no other place. A ring that is replaced and still fits is `retiring`.
    """
    rules = rules or Rules()
    given = {spec.id: spec for spec in models}.values()
    models = [with_measured_head(spec, nodes) for spec in given]
    sessions, lengths = sorted(rules.max_sessions, reverse=True), sorted(rules.contexts, reverse=True)
    chosen = {spread.model: spread.stages for spread in rules.spreads}
    goals = [Goal(lengths, sessions[i:], rules.min_stages, chosen) for i in range(len(sessions))]
    goals += [Goal(lengths[i:], sessions[-1:], rules.min_stages, chosen) for i in range(1, len(lengths))]
    best: _Attempt | None = None
    for goal in goals:
        attempt = _Attempt(models, nodes, fence, head, goal, rules, current)
        attempt.place_all()
        if best is None or attempt.unplaced < best.unplaced:
            best = attempt
        if not attempt.unplaced or len(models) == 1:
            break
    assert best
    if best.refused and any(spec.guesser for spec in models):  # better without guesses than not at all
        bare = [replace(spec, draft=None, mtp=None) for spec in given]
        plan = place(bare, nodes, rules, fence=fence, head=head, current=current)
        if len(plan.refused) < len(best.refused):
            return plan
    rings = [ring for spec in models for ring in best.rings[spec.id]]
    return Placement(fence, head, tuple(rings), tuple(best.refused))


class _Attempt:
    """An attempt to place all models. Memory is reserved as rings are placed."""

    def __init__(
        self,
        models: Sequence[ModelSpec],
        nodes: Sequence[NodeReport],
        fence: Fence,
        head: str,
        goal: Goal,
        rules: Rules,
        current: Placement | None,
    ) -> None:
        self._head = head
        self._models, self._nodes, self._fence, self._goal, self._rules = models, nodes, fence, goal, rules
        self._draining = {node.info.id for node in nodes if node.draining}
        self._count = len(nodes) - len(self._draining)
        self._free = {node.info.id: node.memory.usable for node in nodes}
        self._pace = {spec.id: pace(spec, nodes) for spec in models}
        self._spreads = {spread.model: spread for spread in rules.spreads}
        old = current.rings if current else ()
        self._drivers = {(ring.model, ring.driver) for ring in old}
        self._existing = {spec.id: self._conforming(spec, old) for spec in models}
        """Rings of `current` that could be kept, the best first; placed ones are removed."""
        self.rings: dict[str, list[Ring]] = {spec.id: [] for spec in models}
        """Placed rings, each model's first ring first."""
        self.refused: list[Refusal] = []

    def place_all(self) -> None:
        # The best existing ring of each model keeps its memory while all are placed.
        reserved: dict[str, Ring] = {}
        for spec in self._models:
            if ring := next((each for each in self._existing[spec.id] if _fits(spec, each, self._free)), None):
                self._existing[spec.id].remove(ring)
                _reserve(self._free, spec, ring)
                reserved[spec.id] = ring
        for spec in self._models:
            if ring := self._first_ring(spec, reserved.get(spec.id)):
                self._add(spec, ring)
            else:
                placed = [model for model, rings in self.rings.items() if rings]
                self.refused.append(refusal(spec, self._usable(spec), self._free, self._goal, placed))
        for spec in self._models:
            for ring in self._existing[spec.id]:
                if _fits(spec, ring, self._free):
                    self._add(spec, replace(ring, retiring=not self._is_replica(spec, ring)))
        due = self._models
        while due:  # in rounds, so that each model gets one more before any gets two
            due = [spec for spec in due if self._replicate(spec)]

    @property
    def unplaced(self) -> int:
        """Number of models that have no ring, or only one that should leave its nodes and cannot."""
        return len(self.refused) + sum(self._is_draining(rings[0]) for rings in self.rings.values() if rings)

    def _add(self, spec: ModelSpec, ring: Ring) -> None:
        if not ring.id:
            number = sum(each.fence == self._fence for each in self.rings[spec.id]) + 1
            # The name includes the head: two heads of one term, in different partitions, may arrive at the same fence.
            name = f"{spec.id}@{self._fence.term}.{self._fence.epoch}.{self._head}"
            spread = self._spreads.get(spec.id)
            gain = spread.gain if spread and set(spread.nodes) == set(ring.nodes) else 0.0
            ring = replace(ring, id=f"{name}-{number}" if number > 1 else name, fence=self._fence, gain=gain)
        _reserve(self._free, spec, ring)
        self.rings[spec.id].append(ring)

    # --- existing rings -----------------------------------------------------------------------------------------------

    def _conforming(self, spec: ModelSpec, old: Sequence[Ring]) -> list[Ring]:
        legal_starts, goal = boundaries(spec), self._goal
        found: list[Ring] = []
        for ring in (each for each in old if each.version == spec.version):
            legal = ring.stages[-1].end == spec.layers and all(stage.start in legal_starts for stage in ring.stages)
            wanted = ring.context in goal.contexts_for(spec) and ring.max_sessions in goal.sessions
            barred = any((spec.id, node) in self._rules.barred for node in ring.nodes)
            same_draft = ring.draft == draft_of(spec, len(ring.stages))
            allowed = legal and wanted and same_draft and not barred
            if allowed and _fits(spec, ring, self._free) and self._is_connected(spec, ring):
                found.append(ring)
        return sorted(found, key=lambda ring: (self._is_draining(ring), self._distance(spec, ring), ring.retiring))

    def _is_connected(self, spec: ModelSpec, ring: Ring) -> bool:
        """Whether each node of the ring can reach the next one."""
        return isfinite(self._token_ms(spec, ring))

    def _is_draining(self, ring: Ring) -> bool:
        return not self._draining.isdisjoint(ring.nodes)

    def _distance(self, spec: ModelSpec, ring: Ring) -> tuple[int, bool, int]:
        return self._goal.distance(spec, self._count, len(ring.stages), ring.context)

    # --- the first ring of a model ------------------------------------------------------------------------------------

    def _first_ring(self, spec: ModelSpec, old: Ring | None) -> Ring | None:
        """The old ring, or a new one that is worth moving to; the old one may then be kept next to it."""
        if old is None:
            return self._needed_ring(spec, None)
        _reserve(self._free, spec, old, sign=-1)  # released
        new, unmoved = self._needed_ring(spec, old), self._rules.unmoved
        if new is None and unmoved is not None and old.place not in unmoved and not self._is_draining(old):
            new = self._quicker_ring(spec, old)
        if new is None:
            return replace(old, retiring=False)
        self._existing[spec.id].insert(0, old)
        return new

    def _needed_ring(self, spec: ModelSpec, old: Ring | None) -> Ring | None:
        """A new ring if there is none, or the old one should leave its nodes or falls short of the goal; else None."""
        if old and self._is_by_choice(spec, old):
            return self._chosen_ring(spec, old)
        found: Ring | None = None
        least = (len(self._nodes) + 1, True) if old is None or self._is_draining(old) else self._distance(spec, old)[:2]
        for room in self._memory_options(spec, old):
            if least == (0, False):
                break
            ring = self._search(spec, self._usable(spec), room, self._goal)
            if ring and self._distance(spec, ring)[:2] < least:
                found, least = ring, self._distance(spec, ring)[:2]
        return found

    def _memory_options(self, spec: ModelSpec, old: Ring | None) -> Iterator[dict[str, int]]:
        """Yield the free bytes of each node: next to all existing rings; without replicas; without the old ring, too.

        In the last case the sessions wait while the new ring loads.
        """
        beside_old = dict(self._free)
        if old:
            _reserve(beside_old, spec, old)
        yield self._beside(self._models, beside_old)
        yield beside_old
        if old:
            yield dict(self._free)

    def _beside(self, models: Iterable[ModelSpec], free: Mapping[str, int]) -> dict[str, int]:
        """The free bytes of each node next to the existing rings of these models."""
        left = dict(free)
        for spec in models:
            for ring in self._existing[spec.id]:
                if _fits(spec, ring, left):
                    _reserve(left, spec, ring)
        return left

    def _is_by_choice(self, spec: ModelSpec, old: Ring) -> bool:
        """Whether an old ring would stay but for the number of stages that the model's rings are to have by choice."""
        needed = replace(self._goal, chosen={}).distance(spec, self._count, len(old.stages), old.context)[:2]
        return self._distance(spec, old)[0] > 0 and needed == (0, False) and not self._is_draining(old)

    def _chosen_ring(self, spec: ModelSpec, old: Ring) -> Ring | None:
        """A ring of the chosen number of stages and the old one's context, as requests move between them: beside all others, or in
        place of the model's own while it has no request.
        """
        goal = replace(self._goal, contexts=(old.context,))
        spread = self._spreads[spec.id]
        nodes = [node for node in self._usable(spec) if not spread.nodes or node.info.id in spread.nodes]
        rooms = [next(self._memory_options(spec, old))]
        if spec.id in self._rules.idle:
            rooms.append(self._beside([each for each in self._models if each is not spec], self._free))
        for room in rooms:
            ring = self._search(spec, nodes, room, goal)
            if ring and self._distance(spec, ring)[:2] == (0, False):
                return ring
        return None

    def _quicker_ring(self, spec: ModelSpec, old: Ring) -> Ring | None:
        """A ring that is as good otherwise and much quicker, in memory and on nodes that need not be freed first."""
        beside_all = next(self._memory_options(spec, old))
        ring = self._find(spec, self._usable(spec, self._existing[spec.id]), beside_all, self._goal)
        if ring is None or self._distance(spec, ring) > self._distance(spec, old):
            return None
        if ring.context < old.context or ring.max_sessions < old.max_sessions:
            return None
        return ring if is_quicker(self._token_ms(spec, ring), self._token_ms(spec, old)) else None

    # --- its replicas -------------------------------------------------------------------------------------------------

    def _is_replica(self, spec: ModelSpec, ring: Ring) -> bool:
        """Whether it can serve next to those placed: with the same context, as requests move between them."""
        rings = [each for each in self.rings[spec.id] if not each.retiring]
        taken = {node for each in rings for node in each.nodes}
        spread = self._distance(spec, ring)[0] <= self._distance(spec, rings[0])[0]
        apart = taken.isdisjoint(ring.nodes) and not self._is_draining(ring)
        few = self._rules.max_rings is None or len(rings) < self._rules.max_rings
        return apart and few and spread and ring.context == rings[0].context

    def _replicate(self, spec: ModelSpec) -> bool:
        """Add a ring on nodes where the model has none, if it is useful. Returns whether one was added."""
        rings = self.rings[spec.id]
        nodes = self._usable(spec, rings)
        if not rings or not nodes:
            return False
        ring = self._search(spec, nodes, self._free, replace(self._goal, contexts=(rings[0].context,)))
        if ring is None or not self._is_replica(spec, ring):
            return False
        if self._token_ms(spec, ring) > TOO_SLOW * self._token_ms(spec, rings[0]):
            return False
        self._add(spec, ring)
        return True

    # --- searching ----------------------------------------------------------------------------------------------------

    def _usable(self, spec: ModelSpec, beside: Iterable[Ring] = ()) -> list[NodeReport]:
        """Nodes on which the model may be placed, without those of the rings `beside`."""
        barred = {node for model, node in self._rules.barred if model == spec.id} | self._draining
        barred.update(node for ring in beside for node in ring.nodes)
        return [node for node in self._nodes if node.info.id not in barred]

    def _search(self, spec: ModelSpec, nodes: Sequence[NodeReport], free: Mapping[str, int], goal: Goal) -> Ring | None:
        """The best ring, without an id: one of loaded layers if it is near enough, as it can move while it serves."""
        preferred = self._by_preference(spec, nodes, free)
        loaded = [
            ring for ring in rings_of_loaded_layers(spec, preferred, free, goal) if self._is_connected(spec, ring)
        ]
        best = min(loaded, key=lambda ring: (self._distance(spec, ring), self._token_ms(spec, ring)), default=None)
        if best and self._distance(spec, best)[:2] == (0, False):
            return best
        found = self._find(spec, nodes, free, goal)
        is_better = found and (best is None or self._distance(spec, found)[:2] < self._distance(spec, best)[:2])
        return found if is_better else best

    def _find(self, spec: ModelSpec, nodes: Sequence[NodeReport], free: Mapping[str, int], goal: Goal) -> Ring | None:
        """The best ring, without an id, regardless of what has to be loaded for it."""
        room = {node.info.id: free[node.info.id] for node in nodes}
        return find_ring(spec, self._by_preference(spec, nodes, free), room, goal, self._pace[spec.id])

    def _by_preference(self, spec: ModelSpec, nodes: Sequence[NodeReport], free: Mapping[str, int]) -> list[NodeReport]:
        """Nodes in order of preference: with the model's sessions, with its files, with most room."""

        def rank(node: NodeReport) -> tuple[bool, bool, int, str]:
            name = node.info.id
            return ((spec.id, name) not in self._drivers, spec.version.files not in node.models, -free[name], name)

        return sorted(nodes, key=rank)

    def _token_ms(self, spec: ModelSpec, ring: Ring) -> float:
        return token_ms(spec, ring.stages, {node.info.id: node for node in self._nodes}, self._pace[spec.id])


def _fits(spec: ModelSpec, ring: Ring, free: Mapping[str, int]) -> bool:
    return all(stage_bytes(spec, ring, stage) <= free.get(stage.node, -1) for stage in ring.stages)


def _reserve(free: dict[str, int], spec: ModelSpec, ring: Ring, sign: int = 1) -> None:
    for stage in ring.stages:
        free[stage.node] -= sign * stage_bytes(spec, ring, stage)
