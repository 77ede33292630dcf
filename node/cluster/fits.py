"""Which models fit which Macs, by the placement's own footprint: of the models with short names, or of one given.

A program of its own, `python -m node.cluster.fits [MODEL]`, as it needs no node: `cluster models --fits` runs it, and shows
the lines of JSON that it writes.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from node.cluster.model_specs import spec_of
from node.core.errors import HubUnavailable, ModelNotFound, PippinError
from node.core.models import ModelSpec, ModelVersion
from node.core.nodes import Memory, NodeInfo
from node.core.reports import NodeReport
from node.core.rings import Fence, Ring
from node.core.usage import nearest
from node.engine.converted import converted
from node.engine.plan import make_plan
from node.host.memory import usable
from node.model.config import read_config
from node.model.hub import Hub
from node.model.layouts import Layouts
from node.model.short_names import SHORT_NAMES, canonical, known_configs
from node.model.weights import Weights
from node.placement.place import Rules, place

Macs = tuple[int, ...]
"""Memory of each, in GB."""
USUAL: Sequence[Macs] = (
    *((size,) for size in (8, 16, 24, 32, 48, 64, 128, 512)),
    *((16,) * 2, (16,) * 3, (24,) * 2, (64,) * 4, (512,) * 2),
)
_SMALL_GB = 32
"""Up to this size, macOS recommends two thirds of the memory for the GPU, above it three quarters."""


def main() -> int:
    """Write a line for each model. Returns the exit code: 1 if the model can't be described."""
    try:
        for found in rows(*sys.argv[1:2]):
            print(json.dumps(found), flush=True)  # noqa: T201
    except PippinError as error:
        print(f"cluster: {error}", file=sys.stderr)  # noqa: T201 - as the command that runs this says its own
        return 1
    return 0


def rows(model: str = "") -> Iterator[dict[str, Any]]:
    """Of one model, or of all that have short names: its id and short names, the bytes of its weights, and for each of the
    usual sets of Macs the ring that the placement makes. Raises the errors of `Hub.metadata` and of `make_plan`.
    """
    for name, config, weights in [_described(model)] if model else _known():
        spec = spec_of(ModelVersion(name), make_plan(config, weights.total_bytes), weights)
        rings = [ring_on(spec, macs) for macs in USUAL]
        yield {
            "model": name,
            "short_names": [short for short, known in SHORT_NAMES.items() if known == name],
            "bytes": spec.weight_bytes,
            "fits": [
                {"macs": macs, "stages": len(ring.stages) if ring else 0, "context": ring.context if ring else 0}
                for macs, ring in zip(USUAL, rings, strict=True)
            ],
        }


def ring_on(spec: ModelSpec, macs: Macs) -> Ring | None:
    """What the placement makes of nodes on these Macs that hold nothing else; None if the model does not fit."""
    nodes = [_mac(str(number), size) for number, size in enumerate(macs)]
    placement = place([spec], nodes, Rules(max_rings=1), fence=Fence(1, 1), head=nodes[0].info.id)
    return placement.rings[0] if placement.rings else None


def _mac(name: str, size: int) -> NodeReport:
    total = size * 2**30
    working_set = total * 2 // 3 if size <= _SMALL_GB else total * 3 // 4
    info = NodeInfo(name, 0, name, "", "", 0, (), 0, 0)
    return NodeReport(info, Memory(total, usable(working_set, None)))


_Described = tuple[str, Mapping[str, Any], Weights]
"""Its id, its config, and its tensors."""


def _known() -> Iterator[_Described]:
    for name, config in known_configs().items():
        yield name, config, converted(config)


def _described(model: str) -> _Described:
    """A folder, or a model of the hub; one with a short name also without the hub."""
    if (folder := Path(model).expanduser()).is_dir():
        return folder.name, read_config(folder), Layouts().of(folder).weights
    name = canonical(model)
    if "/" not in name:
        near = nearest(model, SHORT_NAMES)
        hint = f"Did you mean {near}?" if near else "Write its hub id, `org/name`, or the path of its folder."
        raise ModelNotFound(f"No model has the short name {model!r}.", hint=hint)
    try:
        found = Hub().metadata(name)
    except HubUnavailable:
        known = known_configs().get(name)
        if known is None:
            raise
        return name, known, converted(known)
    return name, found.config, found.weights


if __name__ == "__main__":
    sys.exit(main())
