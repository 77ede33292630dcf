"""The first run of a model, in a process that may die.

mlx-lm checks hardly anything of a config.json, and MLX computes beyond the ends of arrays if asked to. So before the node
itself runs a model, its dry run is done here, and then steps of a small model of the same kind: whatever its weights,
they take no memory (`replace_weights`).
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import mlx.core as mx

from node.core.errors import PippinError
from node.core.mlx_errors import MLX_ERRORS
from node.core.pictures import Picture
from node.engine.dry_run import replace_weights
from node.engine.ghosts import find_layers
from node.engine.miniature import miniatures
from node.engine.plan import activation_dtype, build, make_plan
from node.engine.stage import Stage
from node.engine.tower import Tower
from node.engine.warm_up import warm_up
from node.model.picture_form import picture_form

_RAISED = (PippinError, *MLX_ERRORS)


def make_job() -> Callable[[bytes], bytes]:
    """The job of a sandbox. A request is JSON, the arguments of `first_run`; the reply is empty. Begins to use the device."""
    mx.eval(mx.ones(1) + 1)

    def answer(request: bytes) -> bytes:
        first_run(**json.loads(request))
        return b""

    return answer


def first_run(
    config: Mapping[str, Any], weight_bytes: int, kv_bits: int, device: str, *, unproven: bool = False
) -> None:
    """Run a model as a node does that describes and loads it. What raises an error is left to the node, which then refuses
    the model with that error. `device`: "cpu" or "gpu".
    """
    mx.set_default_device(mx.Device(mx.cpu if device == "cpu" else mx.gpu))
    try:
        make_plan(config, weight_bytes, kv_bits, unproven=unproven)
        with suppress(*_RAISED):  # without its tower it still answers texts
            _see_smallest(config)
        for small in miniatures(config):
            if _runs(small, kv_bits, unproven=unproven):
                return
    except _RAISED:
        return


def _see_smallest(config: Mapping[str, Any]) -> None:
    """See the smallest picture with weights that take no memory, and one of the tower's layers, which are of one kind."""
    form = picture_form(config, {})
    if form and form.sizing in ("square", "tiles"):  # with few patches, as a CPU would take minutes for thousands
        side = form.cell if form.sizing == "tiles" else form.patch * (form.bounds[1] // form.cell)
        config = {**config, "vision_config": {**config["vision_config"], "image_size": side}}
        form = picture_form(config, {})
    if not form:
        return
    tower = Tower(config, form)
    replace_weights(tower, [], mx.float32)
    del tower.layers[1:]
    width, height = (form.cell, form.cell) if form.sizing == "fill" else form.size(1, 1)
    for _ in tower.see(Picture(width, height, bytes(3 * width * height))):
        pass


def _runs(config: Mapping[str, Any], kv_bits: int, *, unproven: bool) -> bool:
    try:
        plan, model = make_plan(config, None, kv_bits, unproven=unproven), build(config)
        replace_weights(model, list(find_layers(model)), activation_dtype(config))
        for _ in warm_up(Stage(model, plan, 0, plan.layers)):
            pass
    except _RAISED:
        return False
    return True
