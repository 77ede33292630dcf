"""Pictures of strangers: each has the pixels that a model's own processor would see, or is refused with a reason."""

import dataclasses
import importlib.util
import io
import random
import re
import struct
import zlib
from pathlib import Path

import mlx_lm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.image_utils import SizeDict
from transformers.models.llama4.processing_llama4 import Llama4Processor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from node.core.errors import BadRequest
from node.core.pictures import Picture
from node.model.config import read_config, read_picture_form
from node.model.picture_form import PictureForm
from node.text.picture_job import MAX_PIXELS, decoded
from node.text.picture_marks import PictureMarks
from node.text.pictures import Pictures
from node.text.sandbox import Bounds
from tests.engine import llama4_processor


def form_of(cell, longest, vocabulary, pixels=(0, 0)):
    return PictureForm(
        cell,
        cell // 2,
        (0.5,) * 3,
        (0.5,) * 3,
        3,
        vocabulary,
        work_bytes=0,
        sizing="longest" if longest else "area",
        bounds=(1, longest) if longest else pixels,
        in_axes=not longest,
    )


FORM, SMALL = form_of(28, 1540, 131_072), form_of(8, 64, 2056)
QWEN = form_of(28, 0, 151_936, (56 * 56, 28 * 28 * 1280))
MARKS = PictureMarks(10, row_end=12, end=13)
TILES = PictureForm(
    28,
    14,
    (0.5,) * 3,
    (0.5,) * 3,
    2,
    202_048,
    work_bytes=0,
    sizing="tiles",
    bounds=(336**2, 17 * 336**2),
)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::PIL.Image.DecompressionBombWarning")
"""As in the sandbox."""


@pytest.fixture
async def pictures(sandbox_server):
    pictures = Pictures(sandbox_server)
    yield pictures
    await pictures.end()


def processors():
    """mlx-vlm's code by itself, as its packages import much more."""
    folder = Path(mlx_lm.__file__).parents[1] / "mlx_vlm" / "models" / "pixtral"
    if not folder.is_dir():
        pytest.skip("mlx-vlm is not installed")
    spec = importlib.util.spec_from_file_location("processors", folder / "image_processing_pixtral.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def drawn(width=90, height=50, mode="RGB", seed=1):
    noise = random.Random(seed).randbytes(width * height * 4)
    return Image.frombytes("RGBA", (width, height), noise).convert(mode)


def filed(picture, kind="PNG", **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def chunk(kind, data):
    return struct.pack("!I", len(data)) + kind + data + struct.pack("!I", zlib.crc32(kind + data))


def png(width, height, *chunks, bits=8, kind=2):
    """A PNG that says to be so large."""
    head = struct.pack("!IIBBBBB", width, height, bits, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + b"".join(chunks) + chunk(b"IEND", b"")


# --- pixels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(90, 50), (28, 28), (1, 1), (3000, 700), (700, 3000), (1541, 1540), (5, 2000)])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_pixels_are_those_of_the_models_own_processor(size, kind):
    vlm = processors()
    data = filed(drawn(*size), kind)
    processor = vlm.PixtralImageProcessor(
        size={"longest_edge": 1540}, patch_size=28, do_rescale=False, do_normalize=False
    )
    theirs = processor(Image.open(io.BytesIO(data)))["pixel_values"][0].transpose(1, 2, 0)
    ours = decoded(data, FORM)
    assert (ours.height, ours.width) == theirs.shape[:2]
    assert ours.tobytes() == theirs.astype("uint8").tobytes()


@pytest.mark.parametrize("size", [(90, 50), (28, 28), (3000, 700), (5, 900), (1500, 1501)])
def test_pixels_are_those_of_qwens_own_processor(size):
    picture = drawn(*size)
    processor = Qwen2VLImageProcessorPil()
    pixels = np.array(picture).transpose(2, 0, 1)
    edges = SizeDict(shortest_edge=56 * 56, longest_edge=28 * 28 * 1280)
    theirs = processor.resize(pixels, edges, resample=3, factor=28).transpose(1, 2, 0)
    ours = decoded(filed(picture), QWEN)
    assert (ours.height, ours.width) == theirs.shape[:2]
    assert ours.tobytes() == theirs.astype("uint8").tobytes()


@given(st.integers(1, 9000), st.integers(1, 9000))
def test_sizes_are_those_of_qwens_own_processor(width, height):
    try:
        theirs = smart_resize(height, width)
    except ValueError:
        with pytest.raises(BadRequest, match="200:1 is the most"):
            QWEN.size(width, height)
    else:
        assert QWEN.size(width, height) == theirs[::-1]


@given(st.integers(1, 9000), st.integers(1, 9000))
def test_tiles_are_those_of_llamas_own_processor(width, height):
    (columns, rows), content = llama4_processor.best_fit(width, height, 336, 16)
    taken = TILES.size(width, height)
    assert TILES.runs(*taken) == ([[144] * columns] * rows + [[144]] if columns * rows > 1 else [[144]])
    assert TILES.content(width, height) == content
    assert TILES.takes(*taken)


@pytest.mark.parametrize("size", [(336, 672), (672, 336), (336 * 17, 672), (336, 336 * 18), (337, 336), (1680, 1680)])
def test_no_other_tiles_are_taken(size):
    assert not TILES.takes(*size)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "1"])
def test_what_is_transparent_lies_on_white(mode):
    picture = drawn(16, 16, mode)
    options = {"transparency": 0} if mode in ("P", "L") else {}
    data = filed(picture, "PNG", **options)
    over = Image.open(io.BytesIO(data)).convert("RGBA")
    expected = [
        tuple(round((255 * (255 - alpha) + part * alpha) / 255) for part in parts)
        for *parts, alpha in over.get_flattened_data()
    ]
    ours = decoded(data, form_of(8, 16, 100)).get_flattened_data()
    assert (
        max(abs(a - b) for one, other in zip(ours, expected, strict=True) for a, b in zip(one, other, strict=True)) <= 1
    )


def test_sixteen_bits_of_grey_are_not_clipped():
    picture = Image.new("I;16", (16, 8))
    for place in range(128):
        picture.putpixel((place % 16, place // 16), place * 512)
    shown = decoded(filed(picture), form_of(8, 16, 100))
    assert [pixel[0] for pixel in shown.get_flattened_data()] == [2 * place for place in range(128)]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_picture_is_turned_as_its_exif_says(kind):
    exif = Image.Exif()
    exif[0x0112] = 6
    shown = decoded(filed(drawn(80, 40), kind, exif=exif), FORM)
    assert shown.size == (56, 84)
    lying = decoded(filed(drawn(80, 40), kind, exif=b"Exif\0\0II*\0" + b"\xff" * 40), FORM)
    assert lying.size == (84, 56)


def test_of_an_animation_the_first_frame_is_taken():
    first, second = Image.new("RGB", (16, 16), "red"), Image.new("RGB", (16, 16), "blue")
    for kind in ("PNG", "WEBP"):
        data = filed(
            first, kind, save_all=True, append_images=[second], **({"lossless": True} if kind == "WEBP" else {})
        )
        assert set(decoded(data, SMALL).get_flattened_data()) == {(255, 0, 0)}


# --- strangers --------------------------------------------------------------------------------------------------------


HARMFUL = {
    "nothing": (b"", "no PNG, JPEG or WebP"),
    "a text": (b"Hello there", "no PNG, JPEG or WebP"),
    "a GIF": (filed(drawn(), "GIF"), "no PNG, JPEG or WebP"),
    "a TIFF": (filed(drawn(), "TIFF"), "no PNG, JPEG or WebP"),
    "a PostScript program": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run", "no PNG, JPEG"),
    "an SVG": (b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>', "no PNG, JPEG"),
    "a head without a body": (png(9, 9), "damaged"),
    "half a file": (filed(drawn())[:-4000], "damaged"),
    "half a JPEG": (filed(drawn(900, 500), "JPEG")[:-9000], "damaged"),
    "half a WebP": (filed(drawn(900, 500), "WEBP")[:-9000], "damaged|no PNG"),
    "no pixels": (png(0, 9, chunk(b"IDAT", zlib.compress(b""))), "damaged|no PNG"),
    "a little too large": (png(8001, 8000), f"64,008,000 pixels; {MAX_PIXELS:,} are the most"),
    "too large": (png(100_000, 1000), f"100,000,000 pixels; {MAX_PIXELS:,} are the most"),
    "far too large": (png(2**31 - 1, 2**31 - 1), "more than 128,000,000 pixels"),
    "a bomb": (png(60_000, 60_000, chunk(b"IDAT", zlib.compress(bytes(10**7)))), "more than 128,000,000 pixels"),
    "a large text": (png(8, 8, chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(10**8)))), "damaged|no PNG"),
}


@pytest.mark.parametrize("name", HARMFUL)
async def test_harmful_pictures_are_refused_with_a_reason(pictures, name):
    data, why = HARMFUL[name]
    with pytest.raises(BadRequest, match=why) as refused:
        await pictures.decode(data, FORM, param="messages", client="")
    assert refused.value.param == "messages"
    assert "0x" not in str(refused.value)
    assert "/" not in str(refused.value)
    good = await pictures.decode(filed(drawn(80, 40)), SMALL, param="messages", client="")
    assert (good.width, good.height) == (64, 32)


async def test_a_picture_that_takes_too_long_is_refused_and_the_next_one_is_not(sandbox_server):
    hasty = Pictures(sandbox_server, Bounds(seconds=0.01, memory=2**31, reply=2**26))
    slow = filed(Image.new("RGB", (8000, 7000)))
    try:
        with pytest.raises(BadRequest, match="more than 0.01 s"):
            await hasty.decode(slow, FORM, param="messages", client="")
    finally:
        await hasty.end()


async def test_the_largest_pictures_fit_into_the_limits(pictures):
    for kind in ("PNG", "JPEG", "WEBP"):
        data = filed(Image.new("RGBA" if kind == "PNG" else "RGB", (8000, 8000), "navy"), kind)
        shown = await pictures.decode(data, FORM, param="messages", client="")
        assert (shown.width, shown.height) == (1540, 1540)


@settings(max_examples=300)
@given(st.data())
def test_whatever_is_damaged_gives_a_picture_or_a_reason(data):
    whole = bytearray(filed(drawn(40, 30), data.draw(st.sampled_from(["PNG", "JPEG", "WEBP"]))))
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(whole) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                whole[place] = data.draw(st.integers(0, 255))
            case 1:
                del whole[place : place + data.draw(st.integers(1, 40))]
            case _:
                whole[place:place] = data.draw(st.binary(max_size=40))
        whole = whole or bytearray(b"\0")
    try:
        shown = decoded(bytes(whole), SMALL)
    except BadRequest as error:
        shown = error
    assert "0x" not in str(shown) if isinstance(shown, BadRequest) else shown.size == SMALL.size(*shown.size)


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_a_picture_has_rows_of_places():
    picture = Picture(84, 56, bytes(range(256)) * 55 + bytes(32))
    numbers = picture.numbers(6, FORM.vocabulary)
    laid = MARKS.lay_out([1, 10, 5], [picture], FORM)
    assert laid == [1, *numbers[:3], 12, *numbers[3:], 13, 5]
    assert min(numbers) >= FORM.vocabulary


@pytest.mark.parametrize("rendered", [[1, 5], [10, 10], []])
def test_as_many_places_as_pictures_are_rendered(rendered):
    with pytest.raises(BadRequest, match=f"shows {rendered.count(10)} of the 1 pictures"):
        MARKS.lay_out(rendered, [Picture(28, 28, bytes(28 * 28 * 3))], FORM)


def test_a_models_form_is_of_its_own_files(picture_model):
    form = read_picture_form(picture_model, read_config(picture_model))
    assert form
    assert (form.cell, form.bounds, form.vocabulary) == (8, (1, 64), 2056)


async def test_a_picture_that_is_too_long_for_the_model_is_refused(pictures):
    with pytest.raises(BadRequest, match=r"^A picture of 1x900 is too long"):
        await pictures.decode(filed(drawn(1, 900)), QWEN, param="messages", client="")


async def test_every_picture_has_one_size_where_the_model_has_but_one(pictures):
    form = dataclasses.replace(FORM, sizing="square", bounds=(56, 56))
    for size in ((1, 900), (900, 1), (56, 56)):
        picture = await pictures.decode(filed(drawn(*size)), form, param="messages", client="")
        assert (picture.width, picture.height) == (56, 56)
        assert form.places(56, 56) == 4
    assert form.takes(56, 56)
    assert not form.takes(28, 28)


@pytest.mark.parametrize(("width", "height", "grid"), [(336, 336, (1, 1)), (672, 672, (1, 2)), (672, 1008, (2, 2))])
def test_llamas_tiles_stand_among_the_marks_of_its_processor(width, height, grid):
    texts = ["start", "end", "tile_x_separator", "tile_y_separator", "image", "patch"]
    texts = [f"<|image_{text}|>" if text in ("start", "end") else f"<|{text}|>" for text in texts]
    vocabulary = {text: number for number, text in enumerate(texts, 200_080)}
    picture = Picture(width, height, bytes(width * height * 3))
    numbers = iter(picture.numbers(TILES.places(width, height), TILES.vocabulary))
    theirs = Llama4Processor._prompt_split_image(None, grid, 144)
    expected = [next(numbers) if text == "<|patch|>" else vocabulary[text] for text in re.findall(r"<\|\w+\|>", theirs)]
    marks = PictureMarks.of(vocabulary)
    laid = marks.lay_out([1, vocabulary["<|image|>"], 2], [picture], TILES)
    assert marks.tokens == {*vocabulary.values()}
    assert marks.place == vocabulary["<|patch|>"]
    assert laid == [1, *expected, 2]
    assert not list(numbers)


def test_qwens_places_stand_in_no_rows():
    picture = Picture(56, 84, bytes(56 * 84 * 3))
    marks = PictureMarks.of({"<|image_pad|>": 7})
    assert marks.lay_out([1, 7, 2], [picture], QWEN) == [1, *picture.numbers(6, QWEN.vocabulary), 2]
