"""Recognizes weights in formats other than model*.safetensors, and tells what to do about them."""

import re
from collections.abc import Iterable

from node.core.errors import ModelUnsupported

TAKE_ANOTHER = "Take a model in MLX or safetensors format, such as those of mlx-community."
_CONVERT = "Convert the model with `mlx_lm.convert`, or take one of mlx-community."

_FORMATS = (
    (r".*\.gguf", "GGUF, the format of llama.cpp", TAKE_ANOTHER),
    (
        r"adapter\w*\.safetensors",
        "an adapter, which changes the weights of another model",
        "Fuse it with `mlx_lm.fuse`.",
    ),
    (r"consolidated.*\.safetensors", "weights in Mistral's own format", TAKE_ANOTHER),
    (
        r".*\.safetensors",
        "safetensors under another name",
        "mlx-lm reads model*.safetensors only: rename the files, and in their index if there is one.",
    ),
    (r".*\.npz", "NumPy's format, which MLX used at first", _CONVERT),
    (r".*\.(bin|pt|pth|ckpt)", "PyTorch's format, which can hold code", _CONVERT),
    (r".*\.(h5|msgpack|onnx|mlpackage|mlmodel|tflite)", "weights of another framework", TAKE_ANOTHER),
)
"""(Pattern of file names, description of the format, hint); the first pattern that matches a file is reported."""


def unloadable(where: str, names: Iterable[str]) -> ModelUnsupported:
    """Error for a location with these files, none of which can be loaded."""
    names = sorted(names)
    for pattern, what, hint in _FORMATS:
        found = [name for name in names if re.fullmatch(pattern, name, re.IGNORECASE)]
        if found:
            return ModelUnsupported(f"{where} has no model*.safetensors; {found[0][:100]} is {what}.", hint=hint)
    return ModelUnsupported(f"{where} has no model*.safetensors.", hint=TAKE_ANOTHER)
