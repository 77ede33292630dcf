"""Which files of a model's directory matter, and which names are safe to take from a peer or an index."""

import re

from node.core.errors import ModelNotFound

DESCRIPTION = ".pippin-tensors.json"
"""Written beside weights that are held in part: it says of all of the model's tensors where and what they are."""

INDEX = "model.safetensors.index.json"

# What mlx-lm loads. Python files are left out on purpose: no code comes from the hub or from a peer.
_WEIGHTS = re.compile(r"model[\w.-]*\.safetensors")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SMALL = re.compile(r"\w[\w.-]*\.(json|jsonl|txt|jinja|model|tiktoken)")


def is_weights(name: str) -> bool:
    return _WEIGHTS.fullmatch(name) is not None


def is_small(name: str) -> bool:
    """Config, tokenizer, chat template, index: all that a node needs of a model apart from its weights."""
    return name == DESCRIPTION or _SMALL.fullmatch(name) is not None


def id_parts(model_id: str) -> tuple[str, ...]:
    """`name` or `org/name` in parts that are safe as directory names. Ids come from the network."""
    parts = tuple(model_id.split("/"))
    if len(parts) > 2 or not all(is_safe(part) for part in parts):
        raise ModelNotFound(f"{model_id[:100]!r} is no model id.", hint="Write `name` or `org/name`.", param="model")
    return parts


def checked_revision(revision: str) -> str:
    """One that is safe as a directory's name. Revisions come from the network."""
    if not is_safe(revision) or "/" in revision:
        raise ModelNotFound(f"{revision[:100]!r} is no revision of a model.")
    return revision


def is_commit(revision: str) -> bool:
    """Whether the hub may know it."""
    return _COMMIT.fullmatch(revision) is not None


def is_safe(part: str) -> bool:
    """Whether a part of a model's id can be a directory's name, and be told to peers."""
    return part.isprintable() and not part.startswith(".") and "\\" not in part and 0 < len(part.encode()) <= 255
