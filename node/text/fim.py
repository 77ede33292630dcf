"""Fill in the middle (FIM): how families of code models are asked for the text between two others.

Sources: the models' cards and papers. A tokenizer that has a family's marks does not prove that its model was trained for them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PREFIX: Final = "prefix"
SUFFIX: Final = "suffix"
_FORMS = (
    ("<|fim_prefix|>", PREFIX, "<|fim_suffix|>", SUFFIX, "<|fim_middle|>"),  # Qwen Coder, CodeGemma, Granite 4
    ("<fim_prefix>", PREFIX, "<fim_suffix>", SUFFIX, "<fim_middle>"),  # StarCoder, Granite Code, Stable Code
    ("<fim-prefix>", PREFIX, "<fim-suffix>", SUFFIX, "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", PREFIX, "<｜fim▁hole｜>", SUFFIX, "<｜fim▁end｜>"),  # noqa: RUF001 - DeepSeek Coder
    ("▁<PRE>", PREFIX, "▁<SUF>", SUFFIX, "▁<MID>"),  # Code Llama
    ("<[fim-suffix]>", SUFFIX, "<[fim-prefix]>", PREFIX, "<[fim-middle]>"),  # Seed Coder
    ("[SUFFIX]", SUFFIX, "[PREFIX]", PREFIX),  # Codestral
)
_ENDS = (
    *("<|endoftext|>", "<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<|file_separator|>", "▁<EOT>", "[MIDDLE]"),
    *("<fim_pad>", "<file_sep>", "<filename>", "<repo_name>", "<reponame>", "<fim-pad>"),
)
"""With what models end a text in the middle besides their marks: some go on with the next file of a repository."""
_HEAD = 256 * 2**10
"""Bytes of a tokenizer's file that has its added tokens, before the vocabulary."""


@dataclass(frozen=True, slots=True)
class FimForm:
    """The prompt of a family: `parts` are ids of its marks, and PREFIX and SUFFIX where the two texts are."""

    parts: Sequence[int | str]
    ends: frozenset[int]
    """Ids of tokens that end the text in the middle; none of them is a part of it."""

    @property
    def marks(self) -> frozenset[int]:
        return frozenset(part for part in self.parts if isinstance(part, int))

    @classmethod
    def of(cls, vocabulary: Mapping[str, int]) -> "FimForm | None":
        """The form of a tokenizer with these tokens; None if it has the marks of no family."""
        for form in _FORMS:
            if all(mark in vocabulary for mark in _marks(form)):
                parts = [part if part in (PREFIX, SUFFIX) else vocabulary[part] for part in form]
                ends = {vocabulary[text] for text in (*_marks(form), *_ENDS) if text in vocabulary}
                return cls(parts, frozenset(ends))
        return None


def names_marks(directory: Path) -> bool:
    """Whether a model's small files name the marks of a family. Raises OSError."""
    files = [path for name in ("tokenizer_config.json", "tokenizer.json") if (path := directory / name).is_file()]
    heads = []
    for path in files:
        with path.open("rb") as file:
            heads.append(file.read(_HEAD).decode("utf-8", "replace"))
    return any(all(f'"{mark}"' in head for mark in _marks(form)) for form in _FORMS for head in heads)


def _marks(form: Sequence[str]) -> Sequence[str]:
    return [part for part in form if part not in (PREFIX, SUFFIX)]
