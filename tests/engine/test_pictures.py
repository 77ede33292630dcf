"""Pictures through the stages of a ring, compared with mlx-vlm's whole model, bit for bit."""

import importlib
import io
import json
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from PIL import Image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from node.core.axes import Axes
from node.core.errors import BadRequest, ModelUnsupported
from node.core.frames import Open
from node.core.pictures import Picture
from node.engine import mlx_vlm, mutual, pieces
from node.engine.architectures import OF_MLX_VLM
from node.engine.device import is_gpu
from node.engine.faults import Faults
from node.engine.load import load_stage
from node.engine.plan import make_plan
from node.engine.runner import Runner
from node.engine.stage import Stage
from node.engine.tensor_codec import pack, unpack
from node.engine.tower import Seen, Tower, given_to_tower
from node.engine.trial import first_run
from node.model.config import read_config, read_picture_form
from node.model.layouts import Layout
from node.model.picture_form import MAX_PLACES, PictureForm, deep_layers
from node.model.weights import is_tower
from node.ring.prefill import STALL_S
from node.text.picture_job import decoded
from tests.engine import llama4_processor
from tests.engine.models import at_a_stretch
from tests.engine.vlm import given_pictures, in_chunks, logits, make_model, whole

FAMILIES = (
    "tiny-mistral3",
    "tiny-pixtral",
    "tiny-qwen2.5-vl",
    "tiny-qwen2-vl",
    "tiny-gemma3",
    "tiny-gemma4",
    "tiny-gemma4-e",
    "tiny-qwen3.5",
    "tiny-qwen3.5-moe",
    "tiny-qwen3-vl",
    "tiny-qwen3-vl-moe",
    "tiny-qwen4",
    "tiny-kimi-vl",
    "tiny-glm5",
    "tiny-llama4",
)


@pytest.fixture(scope="module", params=FAMILIES)
def directory(request: Any, tmp_path_factory: Any) -> Path:
    return make_model(request.param, tmp_path_factory.mktemp("models") / request.param)


@pytest.fixture(scope="module")
def form(directory: Path) -> PictureForm:
    found = read_picture_form(directory, read_config(directory))
    assert found
    return found


def picture(form: PictureForm, width: int, height: int, seed: int = 0) -> Picture:
    width, height = form.size(width, height)
    return Picture(width, height, random.Random(seed).randbytes(3 * width * height))


def stages(directory: Path, cuts: Sequence[int]) -> list[Stage]:
    tensors = Layout(directory).weights.tensors
    ends = [0, *cuts, read_config(directory)["text_config"]["num_hidden_layers"]]
    return [at_a_stretch(load_stage(directory, start, end, tensors)) for start, end in pairwise(ends)]


def seen(stage: Stage, prompt: Sequence[int], pictures: Sequence[Picture], sent: int = 0) -> Seen:
    runner = Runner(stage, Path(), Faults())
    return at_a_stretch(runner.see(pictures, prompt, sent, STALL_S))


def laid_out(given: Picture, form: PictureForm) -> list[int]:
    """The numbers of its places, with other tokens between its tiles."""
    numbers = iter(given.numbers(form.places(given.width, given.height), form.vocabulary))
    between = [11] if form.sizing == "tiles" else []
    runs = [[*islice(numbers, run), *between] for row in form.runs(given.width, given.height) for run in row]
    return list(chain.from_iterable(runs))


@pytest.mark.parametrize("cuts", [(), (1,), (1, 3)])
def test_two_pictures_in_chunks_that_divide_them(directory: Path, form: PictureForm, cuts: Sequence[int]) -> None:
    pictures = [picture(form, 50, 30), picture(form, 64, 64, seed=1)]
    model, config = whole(directory), read_config(directory)
    ring = stages(directory, [max(cut, deep_layers(config)) for cut in cuts])
    if ring[0].plan.shared and cuts:
        with pytest.raises(ModelUnsupported, match="its layers are on several nodes: later ones embed the tokens"):
            Runner(ring[0], Path(), Faults()).axes(pictures, [1])
        return
    numbers = [laid_out(each, form) for each in pictures]
    vocabulary, start = form.vocabulary, config.get("vision_start_token_id", 4)
    prompt = [5, 6, start, *numbers[0], 7, 10, start, *numbers[1], 8, 9]
    second = len(prompt) - 2 - len(numbers[1])
    names = ("image_token_index", "image_token_id", "media_placeholder_token_id")
    token = next(config[name] for name in names if name in config)
    known = [token if number >= vocabulary else number for number in prompt]
    pixels, more = given_pictures(form, pictures)
    expected = logits(model, known, pixels, more)
    axes = Runner(ring[0], Path(), Faults()).axes(pictures, prompt)
    # A step of one token into Gemma's window, which has wrapped, adds up in another order, as it does for texts. So does one in MLA.
    few = 2 if config["text_config"].keys() & {"sliding_window", "kv_lora_rank"} else 1
    last = len(prompt) - few
    for wanted in ([len(prompt)], [4, 20, 20 + few, min(60, last - few), last, len(prompt)]):
        ends = sorted({second, *(axes.whole_end(begin, end) if axes else end for begin, end in pairwise([0, *wanted]))})
        got = mx.concatenate(list(_chunks(ring, prompt, ends, pictures, axes)), 1)
        if config["model_type"] == "qwen4_exp":  # the bits depend on chunks, as mlx-vlm's do
            assert mx.array_equal(got, in_chunks(model, known, pixels, more, ends))
        # mlx-vlm computes sines of its own for texts in axes, too; the text of other chats is to be mlx-lm's to the last bit. And
        # GLM-5-Next's formula for a few tokens is another one.
        if not form.in_axes and (config["model_type"] != "glm5_next" or len(ends) == 1):
            assert mx.array_equal(got, expected), mx.abs(got - expected).max()
            continue
        assert mx.abs(got - expected).max() < 1e-4 < mx.abs(expected).max()
        assert mx.array_equal(got.argmax(-1), expected.argmax(-1))
        depends = not form.in_axes or config["model_type"] in OF_MLX_VLM
        same = _same.setdefault((directory, tuple(ends) if depends else ()), got)
        assert mx.array_equal(got, same), "the bits depend on cuts or chunks"


_same: dict[tuple[Path, tuple[int, ...]], mx.array] = {}
"""The first logits of each model; where they depend on chunks, of each of their ends."""


def _chunks(
    ring: Sequence[Stage], prompt: Sequence[int], ends: Sequence[int], pictures: Sequence[Picture], axes: Axes | None
) -> Iterator[mx.array]:
    """The logits of each chunk. Each has places of one picture at most."""
    lane, found = sum(ends), seen(ring[0], prompt, pictures)
    for stage in ring:
        stage.lanes.apply(Open(lane))
    for begin, end in pairwise([0, *ends]):
        if begin >= found.end and any(token >= ring[0].plan.vocabulary for token in prompt[begin:]):
            found = seen(ring[0], prompt, pictures, begin)
        ids, splice = found.at(begin).splice(prompt[begin:end])
        spans = axes.spans(begin, end) if axes else ()
        where: Any = {"spans": spans, "shifts": (axes.shift,) if axes and axes.shift and not spans else ()}
        hidden: Sequence[mx.array] = ring[0].run(lane, mx.array([ids]), splice=splice, **where)
        for stage in ring[1:]:
            told = mx.array([ids]) if stage.plan.reads_tokens else None
            hidden = stage.run(lane, told, unpack(pack(hidden)), **where)
        yield ring[0].finish(hidden, every=True)


def test_a_prompt_with_a_place_of_no_picture(directory: Path, form: PictureForm) -> None:
    (stage,) = stages(directory, ())
    runner, given = Runner(stage.sibling(), directory, Faults()), picture(form, 30, 30)
    vocabulary = stage.plan.vocabulary
    numbers = given.numbers(form.places(given.width, given.height), vocabulary)
    for wrong in ([1, *numbers, vocabulary + 5], [1, *numbers[:-1]], [1, *numbers, *numbers]):
        with pytest.raises(
            BadRequest, match=rf"{len(wrong) - 1} places .* those that came with it have {len(numbers)}\."
        ):
            at_a_stretch(runner.see([given], wrong, 0, STALL_S))
    with pytest.raises(BadRequest, match="not those of the pictures"):
        at_a_stretch(runner.see([given], [1, *reversed(numbers)], 0, STALL_S))


@pytest.mark.parametrize("together", [False, True])
def test_the_pictures_that_a_prompt_needs_next(
    directory: Path, form: PictureForm, monkeypatch: Any, together: bool
) -> None:
    """Several only where they have no more places than the largest one may have."""
    (stage,) = stages(directory, ())
    pictures = [picture(form, 30, 30), picture(form, 30, 30, seed=1)]
    first, second = (each.numbers(form.places(each.width, each.height), form.vocabulary) for each in pictures)
    monkeypatch.setattr(PictureForm, "most_places", len(first) * (2 if together else 1))
    prompt = [1, *first, 2, *second, 3]
    behind = 1 + len(first)
    places = [*range(1, behind)], [*range(behind + 1, len(prompt) - 1)]
    alone = [at_a_stretch(stage.model.tower.see(each)) for each in pictures]
    for sent, index in ((0, 0), (behind - 1, 0), (behind, 1), (len(prompt) - 2, 1)):
        found, wanted = seen(stage, prompt, pictures, sent), slice(index, 2 if together else index + 1)
        assert list(found.positions) == list(chain.from_iterable(places[wanted]))
        assert mx.array_equal(found.embeddings, mx.concatenate(alone[wanted]))


def test_two_places_of_equal_numbers(directory: Path, form: PictureForm, monkeypatch: Any) -> None:
    """A number has 31 bits, so that in a large picture two of them are equal once in some hundred pictures."""
    (stage,) = stages(directory, ())
    given = picture(form, 30, 30)
    places = form.places(given.width, given.height)
    monkeypatch.setattr(Picture, "numbers", lambda *_: [form.vocabulary + 7] * places)
    prompt = [1, *given.numbers(places, form.vocabulary), 2]
    _, splice = seen(stage, prompt, [given]).splice(prompt)
    assert splice
    assert mx.array_equal(splice.embeddings, at_a_stretch(stage.model.tower.see(given)))


def test_pictures_in_another_form(directory: Path, form: PictureForm) -> None:
    (stage,) = stages(directory, ())
    runner = Runner(stage.sibling(), directory, Faults())
    given = picture(form, 30, 30)
    runner.axes([given], given.numbers(form.places(given.width, given.height), form.vocabulary))
    with pytest.raises(BadRequest, match="7x8 pixels"):
        runner.axes([Picture(7, 8, bytes(168))], [1])
    with pytest.raises(BadRequest, match="cannot have 3 bytes"):
        runner.axes([Picture(8, 8, bytes(3))], [1])


def test_without_mlx_vlm_the_model_answers_texts(directory: Path, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(mlx_vlm, "VERSION", "0.0.1")
    if read_config(directory)["model_type"] in OF_MLX_VLM:  # its language model is mlx-vlm's, too
        with pytest.raises(ModelUnsupported):
            stages(directory, ())
        return
    (stage,) = stages(directory, ())
    assert "Pictures need mlx-vlm 0.0.1" in caplog.text
    assert "pip install --no-deps mlx-vlm" in caplog.text
    with pytest.raises(ModelUnsupported, match="takes no pictures on this node"):
        Runner(stage.sibling(), directory, Faults()).axes([], [1])


def test_other_stages_have_no_tower(directory: Path) -> None:
    first, second = stages(directory, (2,))
    assert any(name.startswith("tower.") for name in first.weights)
    assert not any("tower" in name for name in second.weights)


def test_other_steps_run_between_two_parts_of_a_layer_of_the_tower(directory: Path, form: PictureForm) -> None:
    (stage,) = stages(directory, ())
    tower, given = stage.model.tower, picture(form, 30, 30)
    modules = dict(tower.vlm.named_modules())
    vision = read_config(directory)["vision_config"]
    layers = vision.get("num_hidden_layers", vision.get("depth"))
    tiles = sum(map(len, form.tiles(given.width, given.height))) or 1
    alone, together = len(list(tower.see(given, 0.0))), len(list(tower.see(given)))
    assert alone > layers * tiles * 8, "attention, its norm and matrices, and those behind it"
    assert together < alone, "each kind of part is computed by itself once"
    assert sum(map(pieces._is_of_rows, modules.values())) >= layers, "what is between an MLP's matrices is divided, too"
    assert mx.array_equal(at_a_stretch(tower.see(given, 0.0)), at_a_stretch(tower.see(given)))
    assert dict(tower.vlm.named_modules()) == modules


def test_the_driver_has_all_layers_that_get_features_of_pictures(directory: Path) -> None:
    config = read_config(directory)
    deep = deep_layers(config)
    assert make_plan(config).cuts == tuple(range(max(1, deep), 4))
    if config["model_type"] == "qwen4_exp":
        return  # its config has none
    vision = config["vision_config"] | {"deepstack_visual_indexes": [0] * 9}
    many = make_plan(config | {"vision_config": vision})
    assert many.cuts == (() if config["model_type"].startswith("qwen3") else make_plan(config).cuts)


@pytest.mark.filterwarnings("ignore:Image.Image.getdata:DeprecationWarning")  # mlx-vlm's
def test_pixels_as_of_mlx_vlms_processor(directory: Path, form: PictureForm) -> None:
    mlx_vlm.vlm_model("qwen2_vl" if form.in_axes else "pixtral")
    if form.sizing not in ("area", "longest"):
        _as_its_processor_has_it(directory, form)
        return
    settings = json.loads((directory / "preprocessor_config.json").read_text())
    given = picture(form, 50, 30)
    pixels = np.frombuffer(given.pixels, np.uint8).reshape(given.height, given.width, 3)
    sizes = ((1, 1), (64, 64), (63, 65), (640, 480), (33, 1000), (7, 3))
    if form.in_axes:
        module = importlib.import_module("mlx_vlm.models.qwen3_vl.processing_qwen3_vl")
        processor = module.Qwen3VLImageProcessor(**settings)
        found = processor([pixels.transpose(2, 0, 1)])
        assert found["image_grid_thw"].tolist() == given_to_tower(given, form)[1]["image_grid_thw"].tolist()
        for width, height in sizes:
            assert form.size(width, height) == processor._resolved_size(height, width)[::-1]
    else:
        module = importlib.import_module("mlx_vlm.models.pixtral.image_processing_pixtral")
        processor = module.PixtralImageProcessor(**settings | {"patch_size": {"height": form.cell, "width": form.cell}})
        found = processor.preprocess([pixels])
        for size in sizes:
            bounds = (form.bounds[1],) * 2, (form.cell, form.cell)
            assert form.size(*size)[::-1] == module.get_resize_output_image_size(size[::-1], *bounds)
        assert form.size(1000, 1) == (form.bounds[1], form.cell)  # there it has no rows
    assert np.array_equal(np.array(given_to_tower(given, form)[0]), found["pixel_values"])


def _as_its_processor_has_it(directory: Path, form: PictureForm) -> None:
    settings = json.loads((directory / "preprocessor_config.json").read_text())
    kind = read_config(directory)["model_type"]
    module = importlib.import_module(
        f"mlx_vlm.models.{kind}.{'processing' if kind == 'glm5_next' else f'processing_{kind}'}"
    )
    for size in ((50, 30), (64, 64), (9, 180), (400, 5), (1000, 700), (3, 2)):
        sent = Image.frombytes("RGB", size, random.Random(1).randbytes(3 * size[0] * size[1]))
        file = io.BytesIO()
        sent.save(file, "PNG")
        resized = decoded(file.getvalue(), form)
        assert form.takes(*resized.size)
        got, more = given_to_tower(Picture(*resized.size, resized.tobytes()), form)
        if kind == "gemma3":
            expected = Gemma3ImageProcessorPil(**settings)([np.array(sent)], return_tensors="np")["pixel_values"]
        elif kind == "gemma4":
            found, (places,) = module.Gemma4ImageProcessor(**settings)([np.array(sent)])
            assert form.places(*resized.size) == places
            expected = found["pixel_values"]
        elif kind == "kimi_vl":
            found = module.KimiVLImageProcessor(**settings).preprocess([sent])
            assert np.array(more["image_grid_hws"]).tolist() == np.array(found["image_grid_hws"]).tolist()
            expected = np.array(found["pixel_values"])
        elif kind == "llama4":
            expected, (rows, columns) = llama4_processor.tiles(sent, settings)
            runs = [[16] * columns] * rows + [[16]]
            assert form.runs(*resized.size) == (runs if rows * columns > 1 else [[16]])
        else:
            found = module.Glm5NextImageProcessor(**settings)([sent])
            assert np.array(more["image_grid_thw"]).tolist() == found["image_grid_thw"].tolist()
            expected = found["pixel_values"]
        assert np.allclose(np.array(got), expected, atol=1e-6), size


@pytest.mark.skipif(is_gpu(), reason="for the CPU of a Mac")
def test_towers_on_the_cpu_of_a_mac_use_no_kernels_of_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlx_vlm.vlm_model("kernels"), "_HAS_METAL", True)
    mlx_vlm.vlm_model("kimi_vl")
    assert not mlx_vlm.vlm_model("kernels")._HAS_METAL


def test_a_tower_in_the_names_of_published_files(directory: Path, form: PictureForm) -> None:
    """Those of transformers, in PyTorch's order of axes."""
    config, given = read_config(directory), picture(form, 50, 30)
    if not form.in_axes:
        return
    (stage,) = stages(directory, ())
    held = {name: tensor for name, tensor in mx.load(str(directory / "model.safetensors")).items() if is_tower(name)}
    begin = "model.visual." if config["model_type"].startswith(("qwen3", "qwen4")) else "visual."
    published = {name.replace("vision_tower.", begin): tensor for name, tensor in held.items()}
    (patches,) = (name for name in published if "patch_embed" in name and published[name].ndim == 5)
    published[patches] = published[patches].transpose(0, 4, 1, 2, 3)
    assert all(map(is_tower, published))
    tower = Tower(config, form, published)
    assert mx.array_equal(at_a_stretch(tower.see(given)), at_a_stretch(stage.model.tower.see(given)))


def test_a_tower_that_does_not_fit_its_config(directory: Path, tmp_path: Path, caplog: Any) -> None:
    config = read_config(directory)
    for name in ("model.safetensors", "model.safetensors.index.json"):
        (tmp_path / name).write_bytes((directory / name).read_bytes())
    config["vision_config"]["hidden_size"] = 32
    (tmp_path / "config.json").write_text(json.dumps(config))
    (stage,) = stages(tmp_path, ())
    assert "tower cannot be built" in caplog.text
    assert not hasattr(stage.model, "tower"), "it answers texts"


@pytest.mark.parametrize("changed", [{"patch_size": 0}, {"patch_size": "x"}, {"patch_size": -4}, {"patch_size": 2**40}])
def test_a_form_that_makes_no_sense(directory: Path, changed: dict[str, Any]) -> None:
    config = read_config(directory)
    config["vision_config"] |= changed
    assert read_picture_form(directory, config) is None


@pytest.mark.parametrize(
    "name",
    [
        "hidden_size",
        "out_hidden_size",
        "embed_dim",
        "image_size",
        "spatial_merge_size",
        "deepstack_visual_indexes",
        "num_attention_heads",
        "pixel_shuffle_ratio",
    ],
)
@pytest.mark.parametrize("value", [None, "x", -8, 2**60, [], {}, 1e300])
def test_no_number_of_a_config_is_trusted(directory: Path, name: str, value: Any) -> None:
    config = read_config(directory)
    config["vision_config"] |= {name: value}
    config |= {name: value}
    form = read_picture_form(directory, config)
    assert form is None or form.places(*form.size(10**4, 10**4)) <= MAX_PLACES
    assert form is None or 0 < form.work_bytes < 2**63


def test_the_first_run_sees_a_picture(directory: Path, monkeypatch: Any) -> None:
    calls: list[object] = []

    def see(*given: object) -> Generator[None, None, None]:
        calls.append(given)
        yield

    device: Callable[..., object] = lambda *_: None  # noqa: E731
    monkeypatch.setattr("node.engine.trial.mx.set_default_device", device)
    monkeypatch.setattr("node.engine.trial.Tower.see", see)
    first_run(read_config(directory), 2**24, 0, "cpu")
    assert calls


def test_a_model_whose_axes_do_not_fit_its_heads_answers_texts(
    directory: Path, form: PictureForm, tmp_path: Path, caplog: Any
) -> None:
    config = read_config(directory)
    if not form.in_axes:
        assert not stages(directory, ())[0].placing or form.mutual != "none", "its pictures have positions as texts"
        return
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    text = config["text_config"]
    (text.get("rope_parameters") or text["rope_scaling"])["mrope_section"] = [2, 3, 4]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (stage,) = stages(tmp_path, ())
    assert "takes no pictures here" in caplog.text
    with pytest.raises(ModelUnsupported):
        Runner(stage.sibling(), tmp_path, Faults()).axes([], [1])


def test_a_tower_that_fails_spares_the_text_model_no_trial(directory: Path, monkeypatch: Any) -> None:
    ran: list[object] = []
    monkeypatch.setattr("node.engine.trial.mx.set_default_device", lambda *_: None)
    monkeypatch.setattr("node.engine.trial._runs", lambda config, *_, **__: ran.append(config) or True)
    monkeypatch.setattr(mlx_vlm, "VERSION", "0.0.1")
    first_run(read_config(directory), 2**24, 0, "cpu")
    assert bool(ran) != (read_config(directory)["model_type"] in OF_MLX_VLM), "its language model is mlx-vlm's, too"


def test_places_see_each_other_behind_a_quantized_window_too(tmp_path: Path) -> None:
    directory = make_model("tiny-gemma4", tmp_path / "tiny-gemma4")
    found = read_picture_form(directory, read_config(directory))
    assert found
    given, masks = picture(found, 50, 30), list[bool]()
    prompt = [5, *given.numbers(found.places(given.width, given.height), found.vocabulary), 6]
    stage = at_a_stretch(load_stage(directory, 0, 4, Layout(directory).weights.tensors, 8))
    with pytest.MonkeyPatch.context() as patched:
        wider = mutual._wider
        patched.setattr(mutual, "_wider", lambda *args, **how: masks.append(True) or wider(*args, **how))
        axes = Runner(stage, Path(), Faults()).axes([given], prompt)
        list(_chunks([stage], prompt, [len(prompt)], [given], axes))
    assert masks
