"""Reads and checks a model's files, without reading weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlx_lm.utils import load_config

from node.core.errors import ModelBroken

_HEADER_LIMIT = 100_000_000


def read_config(directory: Path) -> dict[str, Any]:
    """The model's config.json. Raises ModelBroken when it is missing or is no JSON object with a model_type."""
    try:
        config = load_config(directory)
    except FileNotFoundError as error:
        raise ModelBroken(f"{directory} has no config.json.") from error
    except (OSError, ValueError, AttributeError) as error:  # JSON and UTF-8 errors are ValueErrors
        raise ModelBroken(f"{directory / 'config.json'} cannot be read: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelBroken(f"{directory / 'config.json'} names no model_type.")
    return config


def read_weight_map(directory: Path) -> Mapping[str, str]:
    """For each tensor of the whole model its file's name; empty for a model in one file.

    Raises ModelBroken when the index is damaged.
    """
    path = directory / "model.safetensors.index.json"
    try:
        index = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelBroken(f"{path} cannot be read: {error}") from error
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelBroken(f"{path} has no weight_map.")
    return weight_map


def check_weights(directory: Path) -> None:
    """Check that each weights file that is here has a sound header and is as long as that says.

    MLX reads tensors long after it opened a file; a file that is cut short is better found before.

    Raises ModelBroken naming the file, or when there is none.
    """
    paths = sorted(directory.glob("model*.safetensors"))
    if not paths:
        raise ModelBroken(f"{directory} has no model*.safetensors files.")
    for path in paths:
        try:
            _check_file(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelBroken(
                f"{path} is damaged: {error}", hint="Delete the file; it will be fetched again."
            ) from error


def _check_file(path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _HEADER_LIMIT):
            raise ValueError(f"its header should take {length} bytes, but the file has {size}")
        header = json.loads(file.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise ValueError(f"it has {size} bytes instead of {expected}")
