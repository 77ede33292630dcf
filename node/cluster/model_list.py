"""The JSON of GET /cluster/models: the models that nodes hold or that the cluster wants. Pure.

Whether a model fits is exact for a model that is placed or refused. For any other it is whether its weights fit in the
memory of all nodes: how much KV they have room for as well is known when it is placed.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from node.cluster.status import model_states
from node.core.reports import NodeReport
from node.core.units import format_bytes
from node.core.views import PRESENT, ClusterView

Json = dict[str, Any]


def build_models(
    view: ClusterView,
    short_names: Mapping[str, str],
    aliases: Mapping[str, str],
    allowed: Callable[[Iterable[str]], list[str]],
    unusable: Mapping[str, str],
    sizes: Mapping[str, int],
) -> Json:
    """`short_names`, `aliases`: ids by name. `allowed`: leaves out models that requests may not load. `unusable`: why models of
    this node's disk can't be loaded, by id. `sizes`: bytes of models that may be had by a name, by id.
    """
    names = {"short_names": short_names, "aliases": aliases}
    reports = [peer.report for peer in view.peers if peer.state in PRESENT]
    states = model_states(view)
    held = {model.id for report in reports for model in report.models}
    return {
        "schema": 1,
        "models": [
            _model(model, view, reports, states.get(model, "unloaded"))
            | {kind: [name for name, of in ids.items() if of == model] for kind, ids in names.items()}
            for model in sorted(allowed(held | states.keys()))
        ],
        "unusable": [{"id": model, "reason": reason} for model, reason in unusable.items() if model not in held],
        **{kind: dict(ids) for kind, ids in names.items()},
        "sizes": dict(sizes),
    }


def _model(model: str, view: ClusterView, reports: list[NodeReport], state: str) -> Json:
    on_disk = max((held.bytes for report in reports for held in report.models if held.id == model), default=0)
    weights = next((spec.weight_bytes for spec in view.placement.specs if spec.id == model), on_disk)
    reason = _obstacle(model, weights, view, reports)
    return {
        "id": model,
        "state": state,
        "bytes": on_disk or weights,
        "nodes": [report.info.id for report in reports if any(held.id == model for held in report.models)],
        "fits": not reason,
        "reason": reason,
    }


def _obstacle(model: str, size: int, view: ClusterView, reports: list[NodeReport]) -> str:
    """Why the model does not fit; empty if it does."""
    if any(ring.model == model for ring in view.placement.rings):
        return ""
    for refusal in view.placement.refused:
        if refusal.model == model:
            return refusal.message
    usable = [report.memory.usable for report in reports if not report.draining]
    if size <= sum(usable):
        return ""
    count = f"{len(usable)} {'node has' if len(usable) == 1 else 'nodes have'}"
    return f"The weights need {format_bytes(size)}; {count} {format_bytes(sum(usable))} for models."
