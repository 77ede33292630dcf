"""Bounds on the numbers of a config.json, which may be anyone's, before a model is built of it."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from mlx.nn.layers.base import Module

from node.core.errors import ModelBroken
from node.engine.graph import weights_in

MOST_LAYERS = 1024
"""The largest models have some 130."""
MOST_EXPERTS = 4096
MOST_HEADS = 16_384
MOST_PARTS = 100_000
"""Layers times experts, of which some models make as many modules. Kimi K2 has 23,000."""
LARGEST = 2**53
"""Of any other whole number: up to it all are exact in JSON as everyone reads it."""
MOST_PER_BYTE = 16
"""Weights for each byte of the files. In 2 bits there are 4, and a head that is tied to the embedding is made, too."""

_MOST = {"layer": MOST_LAYERS, "expert": MOST_EXPERTS, "head": MOST_HEADS}


def check_config(config: Mapping[str, Any]) -> None:
    """Raises ModelBroken when a number is larger than that of any model."""
    found = dict.fromkeys(_MOST, 0)
    for name, value in _numbers(config):
        if kind := _kind_of(name):
            _check_number(name, value, _MOST[kind])
            found[kind] = max(found[kind], value)
        elif "max_" not in name:  # some configs have 10**30 as the longest text, which is cut to what can be
            _check_number(name, value, LARGEST)
    _check_number("layers times experts", found["layer"] * found["expert"], MOST_PARTS)


def check_weight_count(model: Module, weight_bytes: int) -> None:
    """Raises ModelBroken when a model that was built is far larger than its files, before anything is made of it."""
    weights = 0
    for _, weight in weights_in(model):
        weights += math.prod(weight.shape)
    if weights > MOST_PER_BYTE * max(weight_bytes, 1):
        raise ModelBroken(
            f"The model of config.json has {weights:,} weights, but its files have {weight_bytes:,} bytes.",
            hint="Fetch the model again, or see whether config.json belongs to these files.",
        )


def _check_number(name: str, value: int, most: int) -> None:
    if abs(value) > most:
        raise ModelBroken(f"config.json has a {name[:100]} of {str(value)[:30]}; {most:,} is the most.")


def _kind_of(name: str) -> str | None:
    """What a number of this name counts: layers for `num_hidden_layers`, experts for `moe_n_experts`."""
    *before, last = name.split("_")
    kind = last.removesuffix("s")
    return kind if kind in _MOST and not {"num", "n"}.isdisjoint(before) else None


def _numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Each whole number of the config with the name that is nearest to it."""
    todo: list[tuple[str, Any]] = [("", config)]
    while todo:
        name, value = todo.pop()
        if isinstance(value, Mapping):
            todo += [(str(key), each) for key, each in value.items()]
        elif isinstance(value, list):
            todo += [(name, each) for each in value]
        elif isinstance(value, int):
            yield name, value
