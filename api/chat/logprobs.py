"""Log-probabilities in the formats of chat and of legacy completions."""

from collections.abc import Sequence
from typing import Any

from api.chat.answer import TokenText
from node.text.tokenizer import Tokenizer

LEAST = -9999.0
"""Log-probability that OpenAI writes for an impossible token; JSON has no infinity."""


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[TokenText], top: int) -> dict[str, Any]:
    content = [
        {
            **_entry(token.text, token.event.logprob, tokenizer.token_bytes(token.event.token)),
            "top_logprobs": [
                _entry(_name(tokenizer, other), value, tokenizer.token_bytes(other))
                for other, value in _likeliest(token, top)
            ],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(text: str, logprob: float | None, spelled: bytes) -> dict[str, Any]:
    return {"token": text, "logprob": _bounded(logprob), "bytes": list(spelled)}


def legacy_logprobs(tokenizer: Tokenizer, tokens: Sequence[TokenText], top: int) -> dict[str, Any]:
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [_known(token) for token in tokens],
        "top_logprobs": [_legacy_top(tokenizer, token, top) for token in tokens],
        "text_offset": [token.start for token in tokens],
    }


def _legacy_top(tokenizer: Tokenizer, token: TokenText, top: int) -> dict[str, float] | None:
    """The token itself and its likeliest alternatives; of those with the same text, the value of the likeliest."""
    own = _known(token)
    if own is None:
        return None
    named = {token.text: own}
    for other, value in _likeliest(token, top):
        if other != token.event.token:
            name = _name(tokenizer, other)
            named[name] = max(_bounded(value), named.get(name, LEAST))
    return named


def _known(token: TokenText) -> float | None:
    """None for the first token of a prompt, which has no log-probability."""
    return None if token.event.logprob is None else _bounded(token.event.logprob)


def _likeliest(token: TokenText, count: int) -> list[tuple[int, float]]:
    return sorted(token.event.top, key=lambda entry: -entry[1])[:count]


def _bounded(logprob: float | None) -> float:
    return LEAST if logprob is None else min(max(logprob, LEAST), 0.0)


def _name(tokenizer: Tokenizer, token: int) -> str:
    """A token's text; if it is part of a character, its bytes in OpenAI's notation."""
    spelled = tokenizer.token_bytes(token)
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)
