"""The class of a model: mlx-lm's, or for the types that mlx-lm lacks, one around mlx-vlm's language model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.utils import _get_classes

from node.core.errors import ModelUnsupported
from node.engine.architectures import is_of_mlx_vlm, module_of
from node.engine.mlx_vlm import vlm_model

_PARTS = ("text", "vision", "audio", "projector", "perceiver")
"""Those of a model that have configs of their own in mlx-vlm."""


def model_classes(config: Mapping[str, Any]) -> tuple[Any, Any]:
    """The class of a config's model; and the class of its arguments, whose `from_dict` takes the config. Raises ModelUnsupported if
    there is none.
    """
    name = module_of(config)
    if is_of_mlx_vlm(name):
        return _vlm_classes(name)
    classes: tuple[Any, Any] = _get_classes(dict(config))
    return classes


@cache
def _vlm_classes(name: str) -> "tuple[type[Module], _Arguments]":
    package = vlm_model(name, f"Models of type {name}")
    return type(f"{name}.TextModel", (_TextModel,), {"package": package}), _Arguments(package)


@dataclass(frozen=True)
class _Arguments:
    """mlx-vlm's config of a model."""

    package: Any

    def from_dict(self, config: Mapping[str, Any]) -> Any:
        """As mlx-vlm's `load_model` makes it. Raises ModelUnsupported for the formats of other libraries, some of which it converts."""
        if config.get("quantization_config") and not config.get("quantization"):
            raise ModelUnsupported(
                f"Models of type {config.get('model_type')} are supported in MLX's formats, and unquantized.",
                hint="Fetch a version that was converted for MLX.",
            )
        text = config.get("text_config") or config.get("llm_config") or {}
        if isinstance(text, Mapping) and text.get("ple_storage"):  # names a file anywhere
            raise ModelUnsupported(
                f"This {config.get('model_type')} model has its n-gram embeddings in a file of another format.",
                hint="Fetch a version that has all of its weights in safetensors files.",
            )
        whole = {**config, "text_config": text}
        for name in ("vision_config", "audio_config"):
            whole[name] = whole.get(name) or {}  # conversions for text only have null for a tower
        made = self.package.ModelConfig.from_dict(whole)
        for part in (f"{part}_config" for part in _PARTS):
            kind = getattr(self.package, part.title().replace("_", ""), None)
            if kind and hasattr(made, part) and whole.get(part) is not None:
                setattr(made, part, kind.from_dict(whole[part]))
        return made


class _TextModel(Module):
    """A model of mlx-vlm without its towers, with what mlx-lm's models have: logits from a call, `layers`, `make_cache`,
    `sanitize`. Its weights have the names of mlx-vlm's.
    """

    package: ClassVar[Any]

    def __init__(self, config: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        whole = self.package.Model(config)
        self.language_model = whole.language_model
        self._sanitizers = _sanitizers(self.package, whole, config)
        self._make_prompt_cache = vlm_model("cache").make_prompt_cache

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        logits: mx.array = self.language_model(tokens, cache=cache).logits
        return logits

    @property
    def layers(self) -> list[Module]:
        layers: list[Module] = self.language_model.layers
        return layers

    def make_cache(self) -> list[Any]:
        caches: list[Any] = self._make_prompt_cache(self.language_model)
        return caches

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """As mlx-vlm's `load_model` does; then only the language model's are left."""
        for sanitize in self._sanitizers():
            weights = sanitize(weights)
        return {name: weight for name, weight in weights.items() if name.startswith("language_model.")}


def _sanitizers(package: Any, whole: Any, config: Any) -> Callable[[], list[Callable[..., Any]]]:
    """In a function, as a module takes a list for one of modules."""
    found = [getattr(whole, "sanitize", None)]
    if hasattr(package, "LanguageModel") and hasattr(config, "text_config"):
        found.append(getattr(package.LanguageModel(config.text_config), "sanitize", None))
    return lambda: [each for each in found if each]
