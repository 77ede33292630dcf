"""Reads a model's config.json, and checks the files that mlx-lm reads with it."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from mlx_lm.utils import load_config

from node.core.errors import ModelBroken, naming
from node.core.generation import RANGES, in_range
from node.core.mlx_errors import MLX_ERRORS
from node.model.file_names import CONFIGS, MAX_LICENSE_BYTES, PROCESSORS, check_size, is_license
from node.model.json_parser import JsonParser
from node.model.picture_form import PictureForm, picture_form

log = logging.getLogger(__name__)

DAMAGED = (OSError, ValueError, RecursionError)
"""JSON and UTF-8 errors are ValueErrors."""


@contextmanager
def _reading(what: str, directory: Path, errors: tuple[type[Exception], ...] = DAMAGED) -> Iterator[None]:
    """Raises ModelBroken for these errors: those of the disk and of damaged files."""
    try:
        yield
    except errors as error:
        raise ModelBroken(f"{what} of {directory.name} cannot be read: {naming(error, directory)}") from error


def read_config(directory: Path) -> dict[str, Any]:
    """Read the model's config.json. Raises ModelBroken if it is missing or not a JSON object with a model_type."""
    with _reading("config.json", directory, MLX_ERRORS):
        for name in CONFIGS:
            check_small(directory / name)
        try:
            config = load_config(directory)
        except FileNotFoundError as error:
            raise ModelBroken(f"{directory.name} has no config.json.") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelBroken(f"config.json of {directory.name} names no model_type.")
    return config


def read_sampling(directory: Path) -> dict[str, float]:
    """Sampling that the model's authors propose in its generation_config.json; empty if they propose none.

    `do_sample` is ignored, as in vLLM: false is transformers' default, and no advice. Raises ModelBroken.
    """
    path = directory / "generation_config.json"
    check_small(path)
    with _reading(path.name, directory):
        given = json.loads(path.read_text("utf-8")) if path.exists() else {}
    proposed = {name: given[name] for name in RANGES if given.get(name) is not None} if isinstance(given, dict) else {}
    if absurd := {name: value for name, value in proposed.items() if not in_range(name, value)}:
        _tell_once(path, f"{absurd!r:.200}")
    return {name: value for name, value in proposed.items() if name not in absurd}


@lru_cache(maxsize=256)
def _tell_once(path: Path, absurd: str) -> None:
    """A model's small files are read again for each client that asks what it is."""
    log.warning("%s: ignored %s, which no request may have", path, absurd)


def read_picture_form(directory: Path, config: Mapping[str, Any]) -> PictureForm | None:
    """See `picture_form`. `config`: the model's config.json. Raises ModelBroken."""
    processor: Any = {}
    for name in PROCESSORS:
        path = directory / name
        check_small(path)
        with _reading(name, directory):
            given = json.loads(path.read_text("utf-8")) if path.exists() else {}
            if not isinstance(given, dict):
                raise ValueError("it is not a JSON object")  # noqa: TRY004 - a fault of the file
            processor = given.get("image_processor", given) or processor
    return picture_form(config, processor)


def read_template(directory: Path, parser: JsonParser) -> str:
    """The model's chat template in Jinja, the default one if it has several; empty if it has none. Raises ModelBroken."""
    own, config = directory / "chat_template.jinja", directory / "tokenizer_config.json"
    with _reading("The chat template", directory):
        for path in (own, config):
            check_small(path)
        if own.exists():
            return own.read_text("utf-8")
        return parser.template(config.read_bytes()) if config.exists() else ""


def read_license(directory: Path) -> str:
    """The beginning of the model's license and notices, as far as they are among its files here. Raises ModelBroken."""
    texts: list[str] = []
    with _reading("The license", directory):
        for path in sorted(path for path in directory.iterdir() if is_license(path.name) and path.is_file()):
            with path.open("rb") as file:
                texts.append(file.read(MAX_LICENSE_BYTES).decode("utf-8", "replace"))
    return "\n".join(texts)[:MAX_LICENSE_BYTES]


def check_small(path: Path) -> None:
    """Raises ModelBroken if the path is too large to be read, or not a regular file. It may be absent."""
    if not path.exists():
        return
    if not path.is_file():
        raise ModelBroken(f"{path.name} is not a regular file.", hint="Fetch the model again.")
    check_size(path.name, path.stat().st_size)
