"""Searches the best ring for one model on given nodes, or explains in numbers why there is none. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from node.core.models import ModelSpec, Shard
from node.core.reports import NodeReport
from node.core.rings import Refusal, Ring, StageSpec
from node.core.units import format_bytes
from node.placement.footprint import Footprint, footprint
from node.placement.split import Order, best_orders, may_fit, split
from node.placement.unreachable import unreachable_pairs

CONTEXTS = (32768, 16384, 8192, 4096, 2048)
"""Contexts to try, in tokens. 32k holds a coding agent's prompt; below 2k not even a chat with tools fits."""
SESSIONS = (8, 4, 2, 1)
"""Numbers of sessions to try. Beyond 8 streams a Mac's batch gains little and each stream becomes slow to read."""
USEFUL_CONTEXT = 8192
"""Context below which using another node is better than a quicker token."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Requirements of every model's ring, and a ring's distance from them."""

    contexts: Sequence[int]
    sessions: Sequence[int]
    """In descending order, like `contexts`."""
    min_stages: int
    chosen: Mapping[str, int] = field(default_factory=dict[str, int])
    """Stages of the rings of models that are to have neither more nor less, by choice."""

    def contexts_for(self, spec: ModelSpec) -> list[int]:
        """Contexts to try for a model, longest first: a user's wish alone; the model's maximum if all exceed it."""
        if spec.wish.context:
            return [min(spec.wish.context, spec.max_context)]
        return [c for c in self.contexts if c <= spec.max_context] or [spec.max_context]

    def distance(self, spec: ModelSpec, nodes: int, stages: int, context: int) -> tuple[int, bool, int]:
        """Distance of a ring from the ideal; tuples are compared, less is better."""
        chosen = self.chosen.get(spec.id)
        spread = min(chosen or spec.wish.stages or self.min_stages, nodes, len(spec.cuts) + 1)
        useful = min(USEFUL_CONTEXT, self.contexts_for(spec)[0])
        return (abs(spread - stages) if chosen else max(0, spread - stages), context < useful, stages)


def find_ring(
    spec: ModelSpec, nodes: Sequence[NodeReport], free: Mapping[str, int], goal: Goal, pace: Mapping[str, float]
) -> Ring | None:
    """The ring nearest to the ideal, without an id; None if no ring fits.

    `pace`: milliseconds per byte of each node. At equal distance, a longer context is preferred to more sessions: a
    prompt that is too long fails for good, one that is queued is only delayed.
    """
    lengths, most = goal.contexts_for(spec), min(len(nodes), len(spec.cuts) + 1)
    room = sorted(free.values(), reverse=True)  # if any N nodes can hold the model, so can the N with most room
    least = footprint(spec, lengths[-1], goal.sessions[-1])
    options = [(count, context) for count in range(1, most + 1) for context in lengths]
    options.sort(key=lambda o: goal.distance(spec, len(nodes), *o))  # stable: longer contexts stay first
    orders: dict[int, list[Order]] = {}
    for count, context in options:
        if count not in orders:
            fits = may_fit(spec, least, room[:count])
            orders[count] = best_orders(spec, least, nodes, count, free, pace) if fits else []
        for sessions in goal.sessions if orders[count] else ():
            costs = footprint(spec, context, sessions)
            if may_fit(spec, costs, room[:count]) and (stages := _stages(spec, costs, orders[count], free, pace)):
                return new_ring(spec, stages, context, sessions)
    return None


def new_ring(spec: ModelSpec, stages: tuple[StageSpec, ...], context: int, sessions: int) -> Ring:
    """A ring without an id."""
    return Ring("", spec.version, stages, context, sessions, spec.shared_ends, draft=draft_of(spec, len(stages)))


def draft_of(spec: ModelSpec, stages: int) -> Shard | None:
    """All layers of a ring's draft model, or its MTP layer, if there is either and a ring of so many stages has a use for it."""
    if spec.guesser is None or (stages == 1 and not spec.guesses_alone):
        return None
    begin = 0 if spec.draft else spec.layers
    return Shard(spec.guesser.version, begin, begin + spec.guesser.layers)


def _stages(
    spec: ModelSpec, costs: Footprint, orders: Sequence[Order], free: Mapping[str, int], pace: Mapping[str, float]
) -> tuple[StageSpec, ...] | None:
    """Stages in the first of these orders in which the nodes can hold them; None if there is none."""
    for order in orders:
        ends = split(spec, costs, [free[n.info.id] for n in order], [pace[n.info.id] for n in order])
        if ends:
            return tuple(StageSpec(n.info.id, s, e) for n, s, e in zip(order, (0, *ends), ends, strict=False))
    return None


def refusal(
    spec: ModelSpec, nodes: Sequence[NodeReport], free: Mapping[str, int], goal: Goal, placed: Sequence[str]
) -> Refusal:
    """Explain in numbers what the least useful ring would need, and what there is."""
    context, sessions = goal.contexts_for(spec)[-1], goal.sessions[-1]
    costs = footprint(spec, context, sessions)
    weights = sum(spec.layer_bytes) + spec.ends_bytes
    needs = (
        f"{spec.id} needs {format_bytes(costs.whole)}: weights {format_bytes(weights)}, cache {format_bytes(costs.cache)} for {sessions} "
        f"of {context} tokens, working memory {format_bytes(costs.reserve)} a node."
    )
    rooms = ", ".join(
        f"{n.info.name} has {format_bytes(free[n.info.id])} free ({format_bytes(max(0, costs.whole - free[n.info.id]))} short)"
        for n in sorted(nodes, key=lambda n: (n.info.name, n.info.id))
    )
    total = sum(free[n.info.id] for n in nodes)
    verdict = f"together {format_bytes(total)} ({format_bytes(costs.whole - total)} short)"
    if total >= costs.whole:
        verdict = f"together {format_bytes(total)}, but no cut between layers lets every node hold its part"
    hint = "Try a smaller model or a stronger quantization, add a Mac, or let the nodes use more memory."
    if placed:
        hint = f"Unload {' or '.join(placed)}, or: {hint[0].lower()}{hint[1:]}"
    lost = [f" {a.info.name} and {b.info.name} do not reach each other." for a, b in unreachable_pairs(nodes)]
    message = f"{needs} {rooms}; {verdict}.{''.join(lost)}" if nodes else f"{needs} No node can hold layers now."
    return Refusal(spec.id, "no_capacity", message, hint)
