"""Pictures through a ring of real nodes: answers are those of mlx-vlm's whole model, also after a kill, and the next turn of a
chat takes its picture from the prefix.
"""

import base64
import io
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache
from PIL import Image
from transformers import AutoTokenizer
from transformers.models.llama4.processing_llama4 import Llama4Processor

from node.core.pictures import Picture
from node.model.config import read_config, read_picture_form
from node.model.picture_form import PictureForm
from node.text.picture_job import decoded
from tests.conftest import Cluster, Node, running_cluster
from tests.engine.vlm import given_pictures, logits, make_model, whole

pytestmark = pytest.mark.slow

TOKENS = 24
QUESTION = "What is in it?"


@dataclass
class Model:
    """A model of random weights, and mlx-vlm's of the same."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @cached_property
    def whole(self) -> Any:
        return whole(self.path)

    def answer(self, *pictures: Image.Image) -> str:
        """The text of mlx-vlm's model, greedily, to pictures and the question behind them."""
        config, hf = read_config(self.path), AutoTokenizer.from_pretrained(self.path)
        form = read_picture_form(self.path, config)
        assert form
        taken = []
        for picture in pictures:
            shown = decoded(filed(picture), form)
            taken.append(Picture(*shown.size, shown.tobytes()))
        content = [*({"type": "image"} for _ in pictures), {"type": "text", "text": QUESTION}]
        chat = [{"role": "user", "content": content}]
        rendered = hf.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        tokens = hf.encode(laid_out(rendered, form, taken), add_special_tokens=False)
        pixels, more = given_pictures(form, taken)
        cache = make_prompt_cache(self.whole.language_model)
        after = logits(self.whole, tokens, pixels, more, cache)
        ends, found = {*([config["eos_token_id"]])}, list[int]()
        while len(found) < TOKENS and (token := int(after[0, -1].argmax())) not in ends:
            found.append(token)
            after = self.whole.language_model(mx.array([[token]]), cache=cache).logits
        return whole_characters(hf.decode(found, skip_special_tokens=True))


def whole_characters(text: str) -> str:
    """An answer ends with one, also where its last token is a part of one."""
    return text.rstrip("\ufffd")


def laid_out(rendered: str, form: PictureForm, pictures: Sequence[Picture]) -> str:
    """A rendered chat with the places of its pictures, as the family's processor has them."""
    grids = [form.grid(picture.width, picture.height) for picture in pictures]
    if form.sizing == "fill":
        mark = place = "<|image|>"
        shown = [f"<|image>{place * rows * columns}<image|>" for rows, columns in grids]
    elif form.sizing == "square":
        mark, place = "<start_of_image>", "<image_soft_token>"
        shown = [f"\n\n{mark}{place * rows * columns}<end_of_image>\n\n" for rows, columns in grids]
    elif form.sizing == "tiles":
        mark, tiles = "<|image|>", [form.tiles(picture.width, picture.height) for picture in pictures]
        counts = [(max(1, len(rows) - 1), len(rows[0])) for rows in tiles]
        shown = [Llama4Processor._prompt_split_image(None, count, (form.tile // form.cell) ** 2) for count in counts]
    elif form.in_axes:
        mark = place = "<|image_pad|>"
        shown = [place * rows * columns for rows, columns in grids]
    else:
        mark = place = "[IMG]"
        shown = ["[IMG_BREAK]".join([place * columns] * rows) + "[IMG_END]" for rows, columns in grids]
    texts = rendered.split(mark)
    return texts[0] + "".join(each + text for each, text in zip(shown, texts[1:], strict=True))


@pytest.fixture(
    scope="module",
    params=[
        "tiny-mistral3",
        "tiny-qwen2.5-vl",
        "tiny-gemma3",
        "tiny-gemma4",
        "tiny-qwen3.5",
        "tiny-qwen3-vl",
        "tiny-qwen4",
        "tiny-llama4",
    ],
)
def model(request: Any, tmp_path_factory: Any) -> Model:
    return Model(make_model(request.param, tmp_path_factory.mktemp("models") / request.param))


@pytest.fixture(scope="module")
def three(model: Model, tmp_path_factory: Any) -> Iterator[Cluster]:
    """Three nodes that have the model whole, and a ring of three."""
    with running_cluster(tmp_path_factory.mktemp("pictures")) as cluster:
        options = ("--models-dir", str(model.path.parent), "--model", model.id, "--stages", "3", "--fail-after", "20")
        cluster.ready(*cluster.start(3, *options), stages=3)
        yield cluster


def drawn(seed: int, size: tuple[int, int] = (52, 30)) -> Image.Image:
    """A picture of noise."""
    return Image.frombytes("RGB", size, random.Random(seed).randbytes(3 * size[0] * size[1]))


def filed(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def part(picture: Image.Image) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(filed(picture)).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def asked(*pictures: Image.Image) -> list[dict[str, Any]]:
    return [*map(part, pictures), {"type": "text", "text": QUESTION}]


def chat(node: Node, model: Model, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    body = {"model": model.id, "messages": messages, "temperature": 0, "max_tokens": TOKENS, **more}
    answer = node.post("/v1/chat/completions", body)
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.json
    return found


def text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def test_answers_are_those_of_the_whole_model(three: Cluster, model: Model) -> None:
    one, other = drawn(1), drawn(2, (64, 64))
    for pictures in ((one,), (other,), (one, other), (other, one)):
        expected = model.answer(*pictures)
        for node in three.nodes:
            assert whole_characters(text(chat(node, model, user(asked(*pictures))))) == expected
    assert model.answer(one) != model.answer(other)


def test_the_next_turn_takes_the_picture_from_the_prefix(three: Cluster, model: Model, tmp_path: Path) -> None:
    node, picture = three.nodes[1], drawn(3, (64, 48))
    # KV that can't be cut is taken whole or not at all, and texts of random models have other tokens when read again.
    tokens = 8 if model.id in ("tiny-mistral3", "tiny-qwen2.5-vl", "tiny-qwen3-vl") else 1
    first = chat(node, model, user(asked(picture)), max_tokens=tokens)
    messages = [*user(asked(picture)), first["choices"][0]["message"], {"role": "user", "content": "And what else?"}]
    second = chat(node, model, messages)
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["prompt_tokens"] - 2
    fresh = [*user(asked(drawn(4, (64, 48)))), *messages[1:]]
    other = chat(node, model, fresh)
    assert other["usage"]["prompt_tokens"] == second["usage"]["prompt_tokens"]
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] < cached  # of the text before the picture only
    with running_cluster(tmp_path) as alone:
        (one,) = alone.start(1, "--models-dir", str(model.path.parent), "--model", model.id)
        alone.ready(one, stages=1)
        assert text(chat(one, model, messages)) == text(second)


def test_several_answers_and_formats(three: Cluster, model: Model) -> None:
    picture = drawn(5)
    several = chat(three.nodes[0], model, user(asked(picture)), n=3, temperature=1, seed=5)
    again = chat(three.nodes[2], model, user(asked(picture)), n=3, temperature=1, seed=5)
    assert [each["message"] for each in several["choices"]] == [each["message"] for each in again["choices"]]
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 2, 3]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}}
    found = chat(three.nodes[1], model, user(asked(picture)), response_format=form)
    assert json.loads(text(found))["n"] in (1, 2, 3)


def test_a_kill_in_mid_answer(model: Model, tmp_path: Path) -> None:
    """The stream goes on with the very text: the successor has the picture seen again, as its KV is lost with the driver."""
    with running_cluster(tmp_path) as cluster:
        options = ("--models-dir", str(model.path.parent), "--model", model.id, "--stages", "2")
        nodes = cluster.start(3, *options)
        status = cluster.ready(*nodes, stages=2)
        ring = cluster.ring(status)
        gateway = next(node for node in nodes if node not in ring)
        body: dict[str, Any] = {"max_tokens": 300, "logit_bias": {"2": -100}}
        expected = text(chat(gateway, model, user(asked(drawn(6))), **body))
        with gateway.stream(asked(drawn(6)), model=model.id, **body) as events:
            for _ in zip(range(20), events, strict=False):
                pass
            ring[0].kill()
            assert events.rest() == expected
