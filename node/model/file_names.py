"""Which files of a model's directory are used, and which names from a peer or an index are safe."""

import re

from node.core.errors import ModelNotFound

DESCRIPTION = ".pippin-tensors.json"
"""Description file, written next to partial weights: file, dtype and shape of all tensors of the model."""

INDEX = "model.safetensors.index.json"

# Files that mlx-lm loads. Python files are excluded on purpose: no code is taken from the hub or from a peer.
_WEIGHTS = re.compile(r"model[\w.-]*\.safetensors")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SMALL = re.compile(r"\w[\w.-]*\.(json|jsonl|txt|jinja|model|tiktoken)")


def is_weights(name: str) -> bool:
    return _WEIGHTS.fullmatch(name) is not None


def is_small(name: str) -> bool:
    """Whether the name is of a small file: config, tokenizer, chat template, index; all that is not weights."""
    return name == DESCRIPTION or _SMALL.fullmatch(name) is not None


def id_parts(model_id: str) -> tuple[str, ...]:
    """Split `name` or `org/name` into parts that are safe as directory names. Ids come from the network.

    Raises ModelNotFound.
    """
    parts = tuple(model_id.split("/"))
    if len(parts) > 2 or not all(is_safe(part) for part in parts):
        raise ModelNotFound(f"{model_id[:100]!r} is no model id.", hint="Write `name` or `org/name`.", param="model")
    return parts


def checked_revision(revision: str) -> str:
    """Return the revision if it is safe as a directory name. Revisions come from the network. Raises ModelNotFound."""
    if not is_safe(revision) or "/" in revision:
        raise ModelNotFound(f"{revision[:100]!r} is no revision of a model.")
    return revision


def is_commit(revision: str) -> bool:
    """Whether the revision has the form of a commit hash, which the hub may know."""
    return _COMMIT.fullmatch(revision) is not None


def is_safe(part: str) -> bool:
    """Whether a part of a model's id is safe as a directory name and to send to peers."""
    return part.isprintable() and not part.startswith(".") and "\\" not in part and 0 < len(part.encode()) <= 255
