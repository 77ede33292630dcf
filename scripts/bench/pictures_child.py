"""Runs mlx-vlm's whole model on pictures; see pictures.py. Its argument is the model."""

import base64
import json
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx

from node.core.pictures import Picture
from node.model.config import read_config, read_picture_form
from node.model.picture_form import PictureForm
from node.text.picture_job import decoded
from tests.engine.vlm import given_pictures, logits, whole


def first(model: Any, form: PictureForm, place: int, picture: str, tokens: int) -> float:
    """Seconds until the first token after a picture (its file, in base64) and a text, `tokens` in all."""
    begin = time.perf_counter()
    shown = decoded(base64.b64decode(picture), form)
    taken = [Picture(*shown.size, shown.tobytes())]
    rows, columns = form.grid(*shown.size)
    prompt = [place] * (rows * columns) + list(range(400, 400 + tokens - rows * columns))
    pixels, more = given_pictures(form, taken)
    mx.eval(logits(model, prompt, pixels, more)[0, -1].argmax())
    return time.perf_counter() - begin


def main() -> None:
    path = Path(sys.argv[1])
    config = read_config(path)
    form = read_picture_form(path, config)
    assert form
    model = whole(path)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        seconds = first(model, form, config["image_token_index"], **json.loads(line))
        print(json.dumps({"first": seconds}), flush=True)


if __name__ == "__main__":
    main()
