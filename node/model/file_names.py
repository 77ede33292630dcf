"""Which files of a model's directory are used, how large they may be, and which names from a peer or an index are safe."""

import re
from collections.abc import Mapping

from node.core.errors import ModelBroken, ModelNotFound
from node.core.units import format_bytes

DESCRIPTION = ".pippin-tensors.json"
"""Description file, written next to partial weights: file, dtype and shape of all tensors of the model."""

INDEX = "model.safetensors.index.json"
CONFIGS = ("config.json", "generation_config.json", "hf_quant_config.json")
PROCESSORS = ("processor_config.json", "preprocessor_config.json")
"""How a model takes pictures; the second one is preferred."""

MAX_LAYOUT_BYTES = 32 * 2**20
"""Maximum bytes of a header of safetensors, an index, or a description; those of the largest models have some 15 MB."""
MAX_TOKENIZER_BYTES = 64 * 2**20
"""Maximum bytes of a file of a tokenizer. The largest tokenizer.json has some 35 MB."""
MAX_SMALL_BYTES = 256 * 2**20
"""Maximum bytes of all small files of a model together."""
_MAX_BYTES = dict.fromkeys((*CONFIGS, *PROCESSORS), 2**20) | dict.fromkeys((DESCRIPTION, INDEX), MAX_LAYOUT_BYTES)

_SMALL = {
    *CONFIGS,
    *PROCESSORS,
    *(DESCRIPTION, INDEX),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "chat_template.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "dict.txt", "tekken.json"),
    *("tokenizer.model", "spiece.model", "spm.model", "spm_char.model"),
    *("sentencepiece.model", "sentencepiece.bpe.model"),
    *("tiktoken.model", "tokenizer.tiktoken", "qwen.tiktoken"),
    *("emoji.json", "normalizer.json", "byte_maps.json", "entity_vocab.json", "target_vocab.json"),
    *("vocab-src.json", "vocab-tgt.json", "word_shape.json", "word_pronunciation.json"),
}
"""The names that mlx-lm and transformers read of a language model. But for its license, everything else in its folder stays private."""
_LICENSE = re.compile(r"(?:licen[sc]e|notice)(?:[_-][\w-]+)?(?:\.txt|\.md)?", re.IGNORECASE | re.ASCII)
MAX_LICENSE_BYTES = 64 * 2**10
"""Maximum bytes of a license or a notice that is fetched with a model; a longer one stays where it is."""

# Files that mlx-lm loads, and one that it leaves alone, of a layer that it has no code for. Python files are excluded on purpose: no code is taken from the hub or from a peer.
_WEIGHTS = re.compile(r"(?:model[\w.-]*|mtp)\.safetensors")


def is_weights(name: str) -> bool:
    return _WEIGHTS.fullmatch(name) is not None


def is_license(name: str) -> bool:
    return _LICENSE.fullmatch(name) is not None


def is_small(name: str, size: int = 0) -> bool:
    """Whether a file of this name, and size if known, is a small one: config, tokenizer, chat template, index, license; all
    that is not weights.
    """
    return name in _SMALL or (is_license(name) and size <= MAX_LICENSE_BYTES)


def check_size(name: str, size: int) -> None:
    """Raises ModelBroken if a small file is larger than any that a model needs: parsed, it takes 30 times its size."""
    if size > (most := _MAX_BYTES.get(name, MAX_TOKENIZER_BYTES)):
        raise ModelBroken(f"{name} has {size:,} bytes; {most:,} are the most.", hint="Choose another model.")


def check_small_files(model_id: str, sizes: Mapping[str, int]) -> None:
    """Raises ModelBroken if one of a model's small files is too large, or all of them are together."""
    for name, size in sizes.items():
        check_size(name, size)
    if (total := sum(sizes.values())) > MAX_SMALL_BYTES:
        what = f"The small files of {model_id} have {format_bytes(total)} together"
        raise ModelBroken(f"{what}; {format_bytes(MAX_SMALL_BYTES)} are the most.")


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
    return re.fullmatch(r"[0-9a-f]{40}", revision) is not None


def is_safe(part: str) -> bool:
    """Whether a part of a model's id is safe as a directory name and to send to peers."""
    return part.isprintable() and not part.startswith(".") and "\\" not in part and 0 < len(part.encode()) <= 255
