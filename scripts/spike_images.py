#!/usr/bin/env python3
"""The spike of ADR 0026: an image, through a vision tower of mlx-vlm, into Pippin's stages in two processes.

    .venv/bin/uv pip install --target /tmp/vlm --no-deps mlx-vlm pillow requests urllib3 charset-normalizer
    PYTHONPATH=.:/tmp/vlm .venv/bin/python scripts/spike_images.py

Needs mlx-vlm and what that imports, which Pippin does not depend on (0.7.10 was tried). A tiny Mistral 3 model of random
weights gets a text with an image. The logits of all tokens, by mlx-vlm's whole model, are compared with those of two
stages. This process is the driver; another one is the second stage, and knows of no image. What the product lacks is a way
for embeddings into the driver's first layer: here a proxy of the model's own embedding.
"""

import importlib
import json
import multiprocessing
import tempfile
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import make_prompt_cache

from node.core.frames import Frame, Open
from node.core.rings import Fence
from node.engine.faults import Faults
from node.engine.ghosts import LayerProxy
from node.engine.load import load_stage
from node.engine.runner import Runner
from node.engine.stage import Stage
from node.engine.tensor_codec import unpack
from node.model.layouts import Layout
from node.rpc.frame_codec import decode, encode

LAYERS, CUT = 4, 2
IMAGE, BREAK, END = 10, 12, 13
"""Tokens: a place of the image, the end of a row of places, and that of the last row."""
PATCH, MERGE = 14, 2
STEPS = 10
TEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5, "vocab_size": 128, "rope_theta": 1e4,
    "max_position_embeddings": 512, "tie_word_embeddings": False, "layer_types": ["full_attention"] * LAYERS,
    "rope_parameters": {
        "rope_theta": 1e4, "type": "default", "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 32,
    },
}  # fmt: skip
VISION: dict[str, Any] = {
    "model_type": "pixtral", "hidden_size": 32, "head_dim": 8, "num_attention_heads": 4, "num_hidden_layers": 3,
    "intermediate_size": 64, "image_size": 12 * PATCH, "patch_size": PATCH, "rope_theta": 1e4,
}  # fmt: skip


def load(directory: Path, start: int, end: int) -> Stage:
    pieces = load_stage(directory, start, end, Layout(directory).weights.tensors)
    while True:
        try:
            next(pieces)
        except StopIteration as ended:
            return ended.value  # type: ignore[no-any-return]


def serve(directory: Path, link: Connection) -> None:
    """The second stage, until an empty message."""
    runner = Runner(load(directory, CUT, LAYERS), directory, Faults())
    while frame := link.recv_bytes():
        link.send_bytes(encode(runner.relay(decode(frame), last=True)))


class Driver:
    """The first stage. Each prompt gets a lane of its own."""

    def __init__(self, directory: Path, link: Connection) -> None:
        self.stage, self.link = load(directory, 0, CUT), link
        self.runner = Runner(self.stage, directory, Faults())
        self.given: mx.array | None = None
        text: Any = self.stage.model
        text.language_model.model.embed_tokens = LayerProxy(text.language_model.model.embed_tokens, self._embed)

    def _embed(self, original: Any, tokens: mx.array) -> Any:
        return original(tokens) if self.given is None else self.given

    def step(self, lane: int, tokens: mx.array, embeddings: mx.array | None, *, first: bool = False) -> mx.array:
        """Logits [1, length, vocabulary]. `embeddings`: [1, length, width], in place of those of the tokens."""
        self.given = embeddings
        frame = Frame("spike", Fence(1, 1), 0, ops=(Open(lane),) if first else (), lane=lane, every=True)
        self.link.send_bytes(encode(self.runner.begin(frame, np.array(tokens).tolist())))
        return self.stage.finish(unpack(decode(self.link.recv_bytes()).tensors), every=True)


class Whole:
    """mlx-vlm's model, written to `directory` as a checkpoint that the stages load."""

    def __init__(self, directory: Path, text: dict[str, Any]) -> None:
        vlm: Any = importlib.import_module("mlx_vlm.models.mistral3")
        more = {"model_type": "mistral3", "image_token_index": IMAGE, "spatial_merge_size": MERGE}
        parts = vlm.TextConfig.from_dict(text), vlm.VisionConfig.from_dict(VISION)
        mx.random.seed(7)
        self.model: Any = vlm.Model(vlm.ModelConfig(*parts, **more))
        self.model.update(tree_map(lambda w: w + 0.1 * mx.random.normal(w.shape), self.model.parameters()))
        mx.save_safetensors(str(directory / "model.safetensors"), dict(tree_flatten(self.model.parameters())))
        (directory / "config.json").write_text(json.dumps(more | {"text_config": text, "vision_config": VISION}))

    def logits(self, tokens: mx.array, seen: dict[str, Any]) -> list[mx.array]:
        """Of a prompt with an image, and of the STEPS likeliest tokens after it, each [1, length, vocabulary]."""
        cache = make_prompt_cache(self.model.language_model)
        found = [self.model(tokens, mask=None, cache=cache, **seen).logits]
        for _ in range(STEPS):
            found.append(self.model.language_model(likeliest(found[-1]), cache=cache).logits)
        return found


def likeliest(logits: mx.array) -> mx.array:
    return mx.argmax(logits[:, -1:], axis=-1).astype(mx.int32)


def prompt(seed: int) -> tuple[mx.array, dict[str, Any]]:
    """Tokens int32 [1, length] of a text with an image, and the image as the tower takes it."""
    image = np.random.default_rng(seed).integers(0, 256, (90, 200, 3), np.uint8)
    pixtral: Any = importlib.import_module("mlx_vlm.models.pixtral.image_processing_pixtral")
    seen = pixtral.PixtralImageProcessor(size={"longest_edge": 12 * PATCH}, patch_size=PATCH * MERGE)(image)
    ((height, width),) = seen["image_sizes"]
    row = [*[IMAGE] * (width // (PATCH * MERGE)), BREAK]
    rows = row * (height // (PATCH * MERGE))
    return mx.array([[1, 40, 41, *rows[:-1], END, *range(50, 60)]]), {
        **seen,
        "pixel_values": mx.array(seen["pixel_values"]),
    }


def compare(whole: Whole, driver: Driver, lane: int, seed: int, chunk: int) -> mx.array:
    """Print how much the stages' logits, for a prompt in such chunks and then STEPS tokens, differ from the whole model's,
    beside their standard deviation. Returns those after the prompt.
    """
    tokens, seen = prompt(seed)
    expected = whole.logits(tokens, seen)
    given = whole.model.get_input_embeddings(tokens, **seen).inputs_embeds
    cuts = [*range(0, tokens.shape[1], chunk), tokens.shape[1]]
    parts = [driver.step(lane, tokens[:, a:b], given[:, a:b], first=a == 0) for a, b in pairwise(cuts)]
    got = [mx.concatenate(parts, axis=1), *(driver.step(lane, likeliest(each), None) for each in expected[:-1])]
    difference = max(float(mx.max(mx.abs(a - b))) for a, b in zip(got, expected, strict=True))
    places, deviation = int(mx.sum(tokens == IMAGE)), float(mx.std(got[0]))
    print(
        f"  image {seed}, {places} of {tokens.shape[1]} tokens, chunks of {chunk}: differ by {difference} of {deviation:.2f}"
    )
    return got[0][:, -1]


def main() -> None:
    for name in ("mistral", "ministral3"):
        with tempfile.TemporaryDirectory() as folder:
            print(name)
            whole = Whole(Path(folder), TEXT | {"model_type": name})
            link, theirs = multiprocessing.Pipe()
            second = multiprocessing.get_context("spawn").Process(
                target=serve, args=(Path(folder), theirs), daemon=True
            )
            second.start()
            driver = Driver(Path(folder), link)
            one, _, other = (compare(whole, driver, *case) for case in ((1, 1, 999), (2, 1, 16), (3, 2, 999)))
            print(f"  same tokens, other image: logits differ by up to {mx.max(mx.abs(one - other)).item():.2f}")
            link.send_bytes(b"")
            second.join()


if __name__ == "__main__":
    main()
