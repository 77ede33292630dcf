"""Bounds on the numbers of a config.json, which is untrusted, before a model is built from it."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from mlx.nn.layers.base import Module

from node.core.errors import ModelBroken
from node.engine.graph import weights_in

MAX_LAYERS = 1024
"""The largest known models have some 130."""
MAX_EXPERTS = 4096
MAX_HEADS = 16_384
MAX_EXPERT_MODULES = 100_000
"""Maximum layers times experts, as some models have a module for each. Kimi K2 has 23,000."""
MAX_NUMBER = 2**53
"""Maximum of any other integer: up to it, integers are exact in all JSON parsers."""
MAX_PER_BYTE = 16
"""Maximum weights for each byte of the files. Weights of 2 bits are 4 for each byte; a head tied to the embedding adds
some."""

_MAX = {"layer": MAX_LAYERS, "expert": MAX_EXPERTS, "head": MAX_HEADS}


def check_config(config: Mapping[str, Any]) -> None:
    """Raises ModelBroken if a number exceeds its bound."""
    found = dict.fromkeys(_MAX, 0)
    for name, value in _numbers(config):
        *before, last = name.split("_")  # `num_hidden_layers`, `moe_n_experts`
        kind = "layer" if name in ("depth", "layers") else last.removesuffix("s")
        if kind in _MAX and (not before or not {"num", "n"}.isdisjoint(before)):
            _check_number(name, value, _MAX[kind])
            found[kind] = max(found[kind], value)
        elif "max_" not in name:  # some configs have 10**30 as the maximum length, which `max_context` bounds
            _check_number(name, value, MAX_NUMBER)
    _check_number("layers times experts", found["layer"] * found["expert"], MAX_EXPERT_MODULES)


def check_weight_count(model: Module, weight_bytes: int) -> None:
    """Raises ModelBroken if a model, which is built but not evaluated, has far more weights than its files can hold."""
    weights = weight_count(model)
    if weights > MAX_PER_BYTE * max(weight_bytes, 1):
        raise ModelBroken(
            f"The model of config.json has {weights:,} weights, but its files have {weight_bytes:,} bytes.",
            hint="Fetch the model again, or check that config.json belongs to these files.",
        )


def weight_count(model: Module) -> int:
    return sum(math.prod(weight.shape) for _, weight in weights_in(model))


def _check_number(name: str, value: int, most: int) -> None:
    if abs(value) > most:
        raise ModelBroken(f"config.json has a {name[:100]} of {str(value)[:30]}; {most:,} is the most.")


def _numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield each integer of the config with its key, or the key of the list that contains it."""
    todo: list[tuple[str, Any]] = [("", config)]
    while todo:
        name, value = todo.pop()
        if isinstance(value, Mapping):
            todo += [(str(key), each) for key, each in value.items()]
        elif isinstance(value, list):
            todo += [(name, each) for each in value]
        elif isinstance(value, int):
            yield name, value
