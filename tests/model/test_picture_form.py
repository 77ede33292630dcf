"""The forms of pictures of models that are published, by the numbers in their config.json and preprocessor_config.json."""

from typing import Any

import pytest

from node.core.errors import BadRequest
from node.model.picture_form import MAX_PIXELS, PictureForm, deep_layers, picture_form

MISTRAL_SMALL = {
    "model_type": "mistral3",
    "spatial_merge_size": 2,
    "text_config": {"vocab_size": 131072},
    "vision_config": {"hidden_size": 1024, "intermediate_size": 4096, "patch_size": 14, "image_size": 1540},
}
PIXTRAL = {
    "model_type": "pixtral",
    "text_config": {"vocab_size": 131072},
    "vision_config": {"head_dim": 64, "image_size": 1024, "model_type": "pixtral", "patch_size": 16},
}
QWEN2_VL = {
    "model_type": "qwen2_vl",
    "vocab_size": 151936,
    "vision_config": {
        "embed_dim": 1280,
        "hidden_size": 1536,
        "mlp_ratio": 4,
        "patch_size": 14,
        "spatial_merge_size": 2,
    },
}
QWEN2_5_VL = {
    "model_type": "qwen2_5_vl",
    "vocab_size": 151936,
    "vision_config": {"hidden_size": 1280, "intermediate_size": 3420, "patch_size": 14, "spatial_merge_size": 2},
}
QWEN3_VL = {
    "model_type": "qwen3_vl",
    "text_config": {"vocab_size": 151936},
    "vision_config": {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "out_hidden_size": 4096,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "deepstack_visual_indexes": [8, 16, 24],
    },
}
QWEN3_5 = {
    **QWEN3_VL,
    "model_type": "qwen3_5",
    "vision_config": {**QWEN3_VL["vision_config"], "deepstack_visual_indexes": []},
}
LLAMA4 = {
    "model_type": "llama4",
    "text_config": {"vocab_size": 202048, "hidden_size": 5120},
    "vision_config": {
        "hidden_size": 1408,
        "intermediate_size": 5632,
        "num_attention_heads": 16,
        "patch_size": 14,
        "image_size": 336,
        "pixel_shuffle_ratio": 0.5,
    },
}
TILE = {"max_patches": 16, "size": {"height": 336, "width": 336}, "resample": 2, "resize_to_max_canvas": False}
EDGES = {"size": {"shortest_edge": 65536, "longest_edge": 16777216}}
LARGE = {"min_pixels": 3136, "max_pixels": 12845056}


def form_of(config: dict[str, Any], processor: dict[str, Any]) -> PictureForm:
    found = picture_form(config, processor)
    assert found
    return found


@pytest.mark.parametrize(
    ("config", "processor", "size", "taken", "places"),
    [
        (MISTRAL_SMALL, {"size": {"longest_edge": 1540}}, (1540, 1540), (1540, 1540), 55 * 55),
        (MISTRAL_SMALL, {}, (4032, 3024), (1540, 1176), 55 * 42),
        (PIXTRAL, {"size": {"longest_edge": 1024}}, (640, 480), (640, 480), 40 * 30),
        (QWEN2_VL, LARGE, (640, 480), (644, 476), 23 * 17),
        (QWEN2_5_VL, {}, (4032, 3024), (1148, 840), 41 * 30),
        (QWEN2_5_VL, LARGE, (10, 10), (56, 56), 4),
        (QWEN3_VL, EDGES, (640, 480), (640, 480), 20 * 15),
        (QWEN3_5, EDGES, (100, 50), (384, 192), 12 * 6),
        (LLAMA4, TILE, (100, 50), (336, 336), 144),
        (LLAMA4, TILE, (640, 480), (672, 1008), 144 * 5),
        (LLAMA4, TILE, (4032, 3024), (1344, 1344), 144 * 13),
        (LLAMA4, {}, (10_000, 10), (16 * 336, 672), 144 * 17),
        (LLAMA4, {**TILE, "max_patches": 1}, (640, 480), (336, 336), 144),
    ],
)
def test_sizes(
    config: dict[str, Any], processor: dict[str, Any], size: tuple[int, int], taken: tuple[int, int], places: int
) -> None:
    form = form_of(config, processor)
    assert form.size(*size) == taken
    assert form.places(*taken) == places


def test_a_large_picture_for_a_model_that_would_take_it_whole() -> None:
    form = form_of(QWEN2_5_VL, LARGE)
    width, height = form.size(6000, 4000)
    assert MAX_PIXELS * 0.98 < width * height <= MAX_PIXELS


def test_a_picture_that_is_far_too_long() -> None:
    with pytest.raises(BadRequest, match="10000x10 is too long"):
        form_of(QWEN2_VL, {}).size(10_000, 10)


@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen3_omni", None, 7, []])
def test_others_take_none(kind: Any) -> None:
    assert picture_form({**QWEN2_VL, "model_type": kind}, {}) is None
    assert picture_form({"model_type": "qwen2_vl"}, {}) is None, "a conversion for text alone"


@pytest.mark.parametrize(("positions", "takes"), [(840, True), (839, False), (-1, False), ("x", False)])
def test_a_table_of_positions_has_one_for_each_patch_of_the_longest_row(positions: Any, takes: bool) -> None:
    config = {"model_type": "gemma4", "vision_config": {"position_embedding_size": positions}}
    assert (picture_form(config, {"max_soft_tokens": 280}) is not None) == takes


def test_memory_of_the_largest_picture() -> None:
    assert 2 < form_of(MISTRAL_SMALL, {}).work_bytes / 2**30 < 3
    assert 170 < form_of(LLAMA4, {}).work_bytes / 2**20 < 220, "a tile at a time"
    features = form_of(QWEN3_VL, {}).work_bytes - form_of(QWEN3_5, {}).work_bytes
    assert features == 8 * 3 * 4096 * (MAX_PIXELS // 32**2)
    assert form_of(QWEN3_VL, {}).work_bytes == form_of(QWEN3_VL, EDGES).work_bytes, "plans know no settings of sizes"


@pytest.mark.parametrize(
    "settings", [{"resize_to_max_canvas": True}, {"size": {"height": 224, "width": 224}}, {"max_patches": 0}]
)
def test_tiles_with_other_settings_are_not_taken(settings: dict[str, Any]) -> None:
    assert picture_form(LLAMA4, TILE | settings) is None


def test_numbers_of_the_towers_training() -> None:
    assert form_of(QWEN3_VL, {}).mean == form_of(QWEN3_5, {}).std == (0.5, 0.5, 0.5)
    assert form_of(QWEN2_VL, {}).mean[0] == 0.48145466


def test_layers_behind_which_features_of_pictures_come() -> None:
    assert deep_layers(QWEN3_VL) == 3
    assert not any(map(deep_layers, (QWEN3_5, QWEN2_VL, MISTRAL_SMALL, {"vision_config": 7}, {})))
