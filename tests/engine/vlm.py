"""mlx-vlm's whole models, with which those that take pictures are compared."""

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from node.core.pictures import Picture
from node.engine.mlx_vlm import vlm_model
from node.engine.tower import given_to_tower
from node.model.config import read_config
from node.model.picture_form import PictureForm

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_model.py"


def make_model(preset: str, target: Path) -> Path:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", [str(SCRIPT), "--preset", preset, "--out", str(target)])
        runpy.run_path(str(SCRIPT), run_name="__main__")
    return target


def whole(directory: Path) -> Any:
    config = read_config(directory)
    package = vlm_model(config["model_type"])
    given = package.ModelConfig.from_dict(dict(config))
    given.text_config = package.TextConfig.from_dict(config["text_config"])
    given.vision_config = package.VisionConfig.from_dict(config["vision_config"])
    model = package.Model(given)
    weights = model.sanitize(dict(mx.load(str(directory / "model.safetensors"))))
    model.load_weights(list(model.vision_tower.sanitize(weights).items()))
    return model.eval()


def given_pictures(form: PictureForm, pictures: Sequence[Picture]) -> tuple[mx.array, dict[str, Any]]:
    """What the model takes beside the tokens."""
    each = [given_to_tower(one, form) for one in pictures]
    if form.in_axes:
        grids = mx.concatenate([given["image_grid_thw"] for _, given in each])
        return mx.concatenate([patches for patches, _ in each]), {"image_grid_thw": grids}
    # Padded to the largest one, as mlx-vlm's processor does.
    height, width = (max(pixels.shape[axis] for pixels, _ in each) for axis in (2, 3))
    padded = [mx.pad(p, [(0, 0), (0, 0), (0, height - p.shape[2]), (0, width - p.shape[3])]) for p, _ in each]
    return mx.concatenate(padded), {"image_sizes": [size for _, given in each for size in given["image_sizes"]]}
