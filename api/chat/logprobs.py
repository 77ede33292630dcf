"""Log-probabilities in the formats of chat and of legacy completions."""

from collections.abc import Callable, Sequence
from typing import Any

from api.chat.answer import TokenText
from node.text.tokenizer import Tokenizer

LEAST = -9999.0
"""Log-probability that OpenAI writes for an impossible token; JSON has no infinity."""


Spelling = Callable[[bytes], tuple[str, bytes]]
"""How bytes are written that are no text, as they have a part of a character only: as text, and which bytes those are."""


def escaped(part: bytes) -> tuple[str, bytes]:
    """As OpenAI writes them. The bytes of all tokens are then those of the answer."""
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in part), part


def chat_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[TokenText], top: int, spelling: Spelling = escaped
) -> dict[str, Any]:
    content = [
        {
            **_entry(tokenizer, token.event.token, token.event.logprob, spelling, token.text),
            "top_logprobs": [_entry(tokenizer, other, value, spelling) for other, value in _likeliest(token, top)],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(
    tokenizer: Tokenizer, token: int, logprob: float | None, spelling: Spelling, shown: str | None = None
) -> dict[str, Any]:
    text, spelled = _spelled(tokenizer, token, spelling, shown)
    return {"token": text, "logprob": _bounded(logprob), "bytes": list(spelled)}


def legacy_logprobs(tokenizer: Tokenizer, tokens: Sequence[TokenText], top: int) -> dict[str, Any]:
    return {
        "tokens": [_name(tokenizer, token.event.token, token.text) for token in tokens],
        "token_logprobs": [_known(token) for token in tokens],
        "top_logprobs": [_legacy_top(tokenizer, token, top) for token in tokens],
        "text_offset": [token.start for token in tokens],
    }


def _legacy_top(tokenizer: Tokenizer, token: TokenText, top: int) -> dict[str, float] | None:
    """The token itself and its likeliest alternatives; of those with the same text, the value of the likeliest."""
    own = _known(token)
    if own is None:
        return None
    named = {_name(tokenizer, token.event.token, token.text): own}
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


def _name(tokenizer: Tokenizer, token: int, shown: str | None = None) -> str:
    return _spelled(tokenizer, token, escaped, shown)[0]


def _spelled(tokenizer: Tokenizer, token: int, spelling: Spelling, shown: str | None = None) -> tuple[str, bytes]:
    """A token's text and its bytes. `shown`: what of it is in the answer; None: it is not in the answer."""
    spelled = tokenizer.token_bytes(token)
    try:
        text = spelled.decode()
    except UnicodeDecodeError:
        return spelling(spelled)
    text = text if shown is None else shown
    return text, text.encode()
