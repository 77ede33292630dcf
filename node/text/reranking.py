"""Reranking: how Qwen3-Reranker is asked whether a document answers a query. It judges with its next token, `yes` or `no`.

Source: the model's card. Its tokenizer and config are those of Qwen3, which would judge as well, but badly.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""What a document is to do for a query, unless a request says it."""
BEGIN = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
END = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_NAME = re.compile(r"qwen3[-_.]?reranker", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Ids of the two tokens with which a model judges."""

    yes: int
    no: int

    @classmethod
    def of(cls, vocabulary: Mapping[str, int]) -> "Judgement | None":
        """None if the tokenizer lacks one of them, or the marks of the prompt."""
        if any(text not in vocabulary for text in ("yes", "no", "<|im_start|>", "<|im_end|>")):
            return None
        return cls(vocabulary["yes"], vocabulary["no"])


def is_reranker(model: str, config: Mapping[str, Any]) -> bool:
    """Whether a model was trained to judge: its id says so, or its config as vLLM reads it."""
    return bool(_NAME.search(model)) or config.get("classifier_from_token") == ["no", "yes"]


def question(query: str, document: str, instruction: str) -> str:
    """What is between BEGIN and END. Users typed all of it."""
    return f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
