"""Which nodes hold which layers of which models. Pure: models and node reports in, a placement out.

The aim is the fewest seconds per token of one stream: a model goes on as few nodes as hold it with a useful context,
and those nodes stand in the order with the quickest round. A ring that stands and is as good stays as it is, so that
nothing is loaded twice. Replica rings on nodes left over are to come: a model may have several rings.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from node.cluster.footprint import Footprint, ring_bytes
from node.cluster.split import Order, best_orders, edges, may_fit, split
from node.core.types import Fence, ModelSpec, NodeReport, Placement, Refusal, Ring, StageSpec
from node.core.units import format_bytes

CONTEXTS = (32768, 16384, 8192, 4096, 2048)
"""32k holds a coding agent's prompt; below 2k not even a chat with tools fits."""
SESSIONS = (8, 4, 2, 1)
"""Beyond 8 streams a Mac's batch gains little and each stream becomes slow to read."""
USEFUL_CONTEXT = 8192
"""For less than this, taking another node is better than a quicker token."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """What is asked of every model's ring, and how far one may be from it."""

    contexts: Sequence[int]
    sessions: Sequence[int]
    """Both from the largest."""
    min_stages: int

    def contexts_of(self, spec: ModelSpec) -> list[int]:
        """From the longest; a model made for less than all of them gets what it was made for."""
        return [c for c in self.contexts if c <= spec.max_context] or [spec.max_context]

    def distance(self, spec: ModelSpec, nodes: int, stages: int, context: int) -> tuple[int, bool, int]:
        """How far a ring is from the ideal; less is better, the first difference decides."""
        spread = min(self.min_stages, nodes, len(spec.cuts) + 1)
        useful = min(USEFUL_CONTEXT, self.contexts_of(spec)[0])
        return (max(0, spread - stages), context < useful, stages)


def place(
    models: Sequence[ModelSpec],
    nodes: Sequence[NodeReport],
    *,
    fence: Fence,
    head: str,
    min_stages: int = 1,
    current: Placement | None = None,
    contexts: Sequence[int] = CONTEXTS,
    max_sessions: Sequence[int] = SESSIONS,
) -> Placement:
    """Give every model a ring on the nodes, or say why not. Earlier models choose first.

    Rings of `current` that still stand keep their memory before any other model is placed. Only if a model finds no
    room do all get fewer sessions, and then shorter contexts: better all models with less than one with plenty.
    """
    models = list({spec.id: spec for spec in models}.values())
    sessions, lengths = sorted(max_sessions, reverse=True), sorted(contexts, reverse=True)
    wishes = [_Wish(lengths, sessions[i:], min_stages) for i in range(len(sessions))]
    wishes += [_Wish(lengths[i:], sessions[-1:], min_stages) for i in range(1, len(lengths))]
    best: Placement | None = None
    for wish in wishes:
        rings, refused = _place(models, nodes, fence, wish, current)
        if best is None or len(refused) < len(best.refused):
            best = Placement(fence, head, tuple(rings), tuple(refused))
        if not refused or len(models) == 1:
            break
    assert best
    return best


def _place(
    models: Sequence[ModelSpec], nodes: Sequence[NodeReport], fence: Fence, wish: _Wish, current: Placement | None
) -> tuple[list[Ring], list[Refusal]]:
    free = {n.info.id: n.memory.usable for n in nodes}
    kept = _standing(models, free, wish, current)
    drivers = {r.model: r.driver for r in current.rings} if current else {}
    rings: list[Ring] = []
    refused: list[Refusal] = []
    for spec in models:
        old = kept.get(spec.id)
        if old:
            _take(free, spec, old, -1)
        liked = sorted(nodes, key=lambda n: _liking(n, spec, free, drivers.get(spec.id)))
        ring = _ring(spec, liked, free, wish)
        if old and (not ring or not _better(ring, old, spec, len(nodes), wish)):
            ring = old
        if ring:
            ring = ring if ring is old else replace(ring, id=f"{spec.id}@{fence.term}.{fence.epoch}", fence=fence)
            _take(free, spec, ring, 1)
            rings.append(ring)
        else:
            refused.append(_refusal(spec, nodes, free, wish, [r.model for r in rings]))
    return rings, refused


def _standing(
    models: Sequence[ModelSpec], free: dict[str, int], wish: _Wish, current: Placement | None
) -> dict[str, Ring]:
    """The current rings that could stay as they are; their memory is taken from `free`."""
    specs = {spec.id: spec for spec in models}
    kept: dict[str, Ring] = {}
    for ring in current.rings if current else ():
        spec = specs.get(ring.model)
        if spec and spec.id not in kept and _fits(spec, ring, free, wish):
            _take(free, spec, ring, 1)
            kept[spec.id] = ring
    return kept


def _fits(spec: ModelSpec, ring: Ring, free: dict[str, int], wish: _Wish) -> bool:
    marks = edges(spec)
    legal = ring.stages[-1].end == spec.layers and all(s.start in marks for s in ring.stages)
    wanted = ring.context in wish.contexts_of(spec) and ring.max_sessions in wish.sessions
    return legal and wanted and all(ring_bytes(spec, ring, s) <= free.get(s.node, -1) for s in ring.stages)


def _take(free: dict[str, int], spec: ModelSpec, ring: Ring, sign: int) -> None:
    for stage in ring.stages:
        free[stage.node] -= sign * ring_bytes(spec, ring, stage)


def _liking(node: NodeReport, spec: ModelSpec, free: dict[str, int], driver: str | None) -> tuple[bool, bool, int, str]:
    """Order in which nodes are considered: first who has the sessions, then who has the files, then who has room."""
    return (node.info.id != driver, spec.id not in node.models, -free[node.info.id], node.info.id)


def _better(new: Ring, old: Ring, spec: ModelSpec, nodes: int, wish: _Wish) -> bool:
    """A longer context or a quicker round alone is not worth loading the model again."""
    return wish.distance(spec, nodes, len(new.stages), new.context) < wish.distance(
        spec, nodes, len(old.stages), old.context
    )


def _ring(spec: ModelSpec, nodes: Sequence[NodeReport], free: dict[str, int], wish: _Wish) -> Ring | None:
    """The ring nearest to the ideal, without an id.

    Of the same distance, a longer context goes before more sessions: a prompt that is too long fails for good, one
    that has to queue is merely later.
    """
    lengths, most = wish.contexts_of(spec), min(len(nodes), len(spec.cuts) + 1)
    room = sorted(free.values(), reverse=True)  # if any nodes hold the model, as many of the roomiest do
    least = Footprint(spec, lengths[-1], wish.sessions[-1])
    options = [(count, context) for count in range(1, most + 1) for context in lengths]
    options.sort(key=lambda o: wish.distance(spec, len(nodes), *o))  # stable: longer contexts stay first
    orders: dict[int, list[Order]] = {}
    for count, context in options:
        if count not in orders:
            orders[count] = best_orders(nodes, count, free) if may_fit(spec, least, room[:count]) else []
        for sessions in wish.sessions if orders[count] else ():
            costs = Footprint(spec, context, sessions)
            if may_fit(spec, costs, room[:count]) and (stages := _stages(spec, costs, orders[count], free)):
                return Ring("", spec.id, stages, context, sessions, spec.shared_ends)
    return None


def _stages(
    spec: ModelSpec, costs: Footprint, orders: Sequence[Order], free: dict[str, int]
) -> tuple[StageSpec, ...] | None:
    """The layers of each node, in the first order in which the nodes can hold them."""
    for order in orders:
        ends = split(spec, costs, [free[n.info.id] for n in order])
        if ends:
            return tuple(StageSpec(n.info.id, s, e) for n, s, e in zip(order, (0, *ends), ends, strict=False))
    return None


def _refusal(
    spec: ModelSpec, nodes: Sequence[NodeReport], free: dict[str, int], wish: _Wish, placed: Sequence[str]
) -> Refusal:
    """Say in numbers what the least useful ring would need and what there is."""
    context, sessions = wish.contexts_of(spec)[-1], wish.sessions[-1]
    costs = Footprint(spec, context, sessions)
    weights = sum(spec.layer_bytes) + spec.ends_bytes
    needs = (
        f"{spec.id} needs {format_bytes(costs.whole)}: weights {format_bytes(weights)}, cache {format_bytes(costs.cache)} for {sessions} "
        f"of {context} tokens, working memory {format_bytes(costs.reserve)} a node."
    )
    rooms = ", ".join(
        f"{n.info.name} has {format_bytes(free[n.info.id])} free ({format_bytes(max(0, costs.whole - free[n.info.id]))} short)"
        for n in sorted(nodes, key=lambda n: (n.info.name, n.info.id))
    )
    total = sum(free.values())
    verdict = f"together {format_bytes(total)} ({format_bytes(costs.whole - total)} short)"
    if total >= costs.whole:
        verdict = f"together {format_bytes(total)}, but no cut between layers lets every node hold its part"
    hint = "Try a smaller model or a stronger quantization, add a Mac, or let the nodes use more memory."
    if placed:
        hint = f"Stop preloading {' or '.join(placed)}, or: {hint[0].lower()}{hint[1:]}"
    message = f"{needs} {rooms}; {verdict}." if nodes else f"{needs} No node can hold layers now."
    return Refusal(spec.id, "no_capacity", message, hint)
