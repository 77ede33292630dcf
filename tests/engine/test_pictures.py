"""Pictures through the stages of a ring, compared with mlx-vlm's whole model, bit for bit."""

import importlib
import json
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from node.core.axes import Axes
from node.core.errors import BadRequest, ModelUnsupported
from node.core.frames import Open
from node.core.pictures import Picture
from node.engine import mlx_vlm
from node.engine.faults import Faults
from node.engine.load import load_stage
from node.engine.runner import Runner
from node.engine.stage import Stage
from node.engine.tensor_codec import pack, unpack
from node.engine.tower import Seen, given_to_tower
from node.engine.trial import first_run
from node.model.config import read_config, read_picture_form
from node.model.layouts import Layout
from node.model.picture_form import MAX_PLACES, PictureForm
from tests.engine.models import at_a_stretch
from tests.engine.vlm import given_pictures, make_model, whole

FAMILIES = ("tiny-mistral3", "tiny-pixtral", "tiny-qwen2.5-vl", "tiny-qwen2-vl")


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


def seen(stage: Stage, prompt: Sequence[int], pictures: Sequence[Picture]) -> Seen:
    runner = Runner(stage, Path(), Faults())
    return at_a_stretch(runner.see(pictures, prompt, 0))


@pytest.mark.parametrize("cuts", [(), (1,), (1, 3)])
def test_two_pictures_in_chunks_that_divide_them(directory: Path, form: PictureForm, cuts: Sequence[int]) -> None:
    pictures = [picture(form, 50, 30), picture(form, 64, 64, seed=1)]
    model, ring, config = whole(directory), stages(directory, cuts), read_config(directory)
    numbers = [each.numbers(form.places(each.width, each.height), form.vocabulary) for each in pictures]
    vocabulary, start = form.vocabulary, config.get("vision_start_token_id", 4)
    prompt = [5, 6, start, *numbers[0], 7, 10, start, *numbers[1], 8, 9]
    embeddings = seen(ring[0], prompt, pictures)
    token = config.get("image_token_index") or config["image_token_id"]
    known = [token if number >= vocabulary else number for number in prompt]
    pixels, more = given_pictures(form, pictures)
    expected = model(mx.array([known]), pixels, None, **more).logits
    grids = [form.grid(each.width, each.height) for each in pictures]
    axes = Axes(prompt, grids, vocabulary) if form.in_axes else None
    for ends in ([len(prompt)], [4, 20, 21, 60, len(prompt) - 1, len(prompt)]):
        got = mx.concatenate(list(_chunks(ring, prompt, ends, embeddings, axes)), 1)
        if not axes:
            assert mx.array_equal(got, expected), mx.abs(got - expected).max()
        else:  # mlx-vlm computes sines of its own for texts, too; the text of other chats is to be mlx-lm's to the last bit
            assert mx.abs(got - expected).max() < 1e-4 < mx.abs(expected).max()
            assert mx.array_equal(got.argmax(-1), expected.argmax(-1))
            _same[directory] = _same.get(directory, got)
            assert mx.array_equal(got, _same[directory]), "the bits depend on cuts or chunks"


_same: dict[Path, mx.array] = {}
"""The first logits of each model."""


def _chunks(
    ring: Sequence[Stage], prompt: Sequence[int], ends: Sequence[int], found: Seen, axes: Axes | None
) -> Iterator[mx.array]:
    lane = len(ends)
    for stage in ring:
        stage.lanes.apply(Open(lane))
    for begin, end in pairwise([0, *ends]):
        ids, splice = found.at(begin).splice(prompt[begin:end])
        spans = axes.spans(begin, end) if axes else ()
        where: Any = {"spans": spans, "shifts": (axes.shift,) if axes and not spans else ()}
        hidden: Sequence[mx.array] = ring[0].run(lane, mx.array([ids]), splice=splice, **where)
        for stage in ring[1:]:
            hidden = stage.run(lane, None, unpack(pack(hidden)), **where)
        yield ring[0].finish(hidden, every=True)


def test_a_prompt_with_a_place_of_no_picture(directory: Path, form: PictureForm) -> None:
    (stage,) = stages(directory, ())
    runner, given = Runner(stage.sibling(), directory, Faults()), picture(form, 30, 30)
    vocabulary = stage.plan.vocabulary
    numbers = given.numbers(form.places(given.width, given.height), vocabulary)
    with pytest.raises(BadRequest, match="1 places of pictures that did not come"):
        at_a_stretch(runner.see([given], [1, *numbers, vocabulary + 5], 0))
    for wrong in ([1, *numbers[:-1]], [1, *reversed(numbers)], [1, 2]):
        with pytest.raises(BadRequest, match="not those of the pictures"):
            at_a_stretch(runner.see([given], wrong, 0))
    prompt = [1, *numbers, 2, 3]
    assert len(at_a_stretch(runner.see([given], prompt, 4)).found) == len(numbers) - 3  # of the rest of the prompt only
    assert not at_a_stretch(runner.see([given], prompt, len(prompt) - 2)).found


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
    runner.check_pictures([picture(form, 30, 30)])
    with pytest.raises(BadRequest, match="7x8 pixels"):
        runner.check_pictures([Picture(7, 8, bytes(168))])
    with pytest.raises(BadRequest, match="cannot have 3 bytes"):
        runner.check_pictures([Picture(8, 8, bytes(3))])


def test_without_mlx_vlm_the_model_answers_texts(directory: Path, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(mlx_vlm, "VERSION", "0.0.1")
    (stage,) = stages(directory, ())
    assert "Pictures need mlx-vlm 0.0.1" in caplog.text
    assert "pip install --no-deps mlx-vlm" in caplog.text
    with pytest.raises(ModelUnsupported, match="takes no pictures on this node"):
        Runner(stage.sibling(), directory, Faults()).check_pictures([])


def test_other_stages_have_no_tower(directory: Path) -> None:
    first, second = stages(directory, (2,))
    assert any(name.startswith("tower.") for name in first.weights)
    assert not any("tower" in name for name in second.weights)


def test_other_steps_run_between_two_layers_of_the_tower(directory: Path, form: PictureForm) -> None:
    (stage,) = stages(directory, ())
    pieces = list(stage.model.tower.see(picture(form, 30, 30)))
    vision = read_config(directory)["vision_config"]
    assert len(pieces) == vision.get("num_hidden_layers", vision.get("depth"))


def test_pixels_as_of_mlx_vlms_processor(directory: Path, form: PictureForm) -> None:
    mlx_vlm.vlm_model("qwen2_vl" if form.in_axes else "pixtral")
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
            bounds = (form.longest, form.longest), (form.cell, form.cell)
            assert form.size(*size)[::-1] == module.get_resize_output_image_size(size[::-1], *bounds)
        assert form.size(1000, 1) == (form.longest, form.cell)  # there it has no rows
    assert np.array_equal(np.array(given_to_tower(given, form)[0]), found["pixel_values"])


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


@pytest.mark.parametrize("name", ["hidden_size", "embed_dim", "image_size", "spatial_merge_size"])
@pytest.mark.parametrize("value", [None, "x", -8, 2**60, [], {}, 1e300])
def test_no_number_of_a_config_is_trusted(directory: Path, name: str, value: Any) -> None:
    config = read_config(directory)
    config["vision_config"] |= {name: value}
    config |= {name: value}
    form = read_picture_form(directory, config)
    assert form is None or form.places(*form.size(10**4, 10**4)) <= MAX_PLACES


def test_the_first_run_sees_a_picture(directory: Path, monkeypatch: Any) -> None:
    calls: list[object] = []

    def see(*given: object) -> Generator[float, None, None]:
        calls.append(given)
        yield 1.0

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
        assert not stages(directory, ())[0].rotation, "its pictures have positions as texts"
        return
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config["text_config"]["rope_scaling"]["mrope_section"] = [2, 3, 4]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (stage,) = stages(tmp_path, ())
    assert "takes no pictures here" in caplog.text
    with pytest.raises(ModelUnsupported):
        Runner(stage.sibling(), tmp_path, Faults()).check_pictures([])


def test_a_tower_that_fails_spares_the_text_model_no_trial(directory: Path, monkeypatch: Any) -> None:
    ran: list[object] = []
    monkeypatch.setattr("node.engine.trial.mx.set_default_device", lambda *_: None)
    monkeypatch.setattr("node.engine.trial._runs", lambda config, *_, **__: ran.append(config) or True)
    monkeypatch.setattr(mlx_vlm, "VERSION", "0.0.1")
    first_run(read_config(directory), 2**24, 0, "cpu")
    assert ran
