"""The legacy endpoint's `echo`: the prompt before each answer."""

import asyncio
from collections.abc import Sequence

from api.chat.answer import Delta, TokenText
from api.chat.env import Env
from node.core.evaluation import EvaluateRequest, Score
from node.core.generation import TokenEvent
from node.text.tokenizer import Tokenizer


class Echo:
    """Echo of one prompt, shared by its choices: its text, and if `wanted` its tokens with log-probabilities."""

    def __init__(self, pieces: Sequence[str], text: str | None, wanted: EvaluateRequest | None) -> None:
        self.text = "".join(pieces) if text is None else text
        self._pieces = pieces
        self._wanted = wanted
        self._asking = asyncio.Lock()
        self._tokens: tuple[TokenText, ...] = ()

    async def read(self, env: Env) -> Delta:
        """The delta that precedes each choice. The first caller has the prompt scored."""
        async with self._asking:
            if self._wanted and not self._tokens:
                evaluation = await env.evaluate(self._wanted)
                self._tokens = self._scored(self._wanted.prompt, [None, *evaluation.scores])
        return Delta(self.text, self._tokens)

    def _scored(self, prompt: Sequence[int], scores: Sequence[Score | None]) -> tuple[TokenText, ...]:
        """The first token follows nothing, so it has no score."""
        tokens: list[TokenText] = []
        start = 0
        for token, piece, score in zip(prompt, self._pieces, scores, strict=True):
            position = len(tokens) - len(prompt)
            event = TokenEvent(position, token, score.logprob, score.top) if score else TokenEvent(position, token)
            tokens.append(TokenText(event, piece, min(start, len(self.text))))
            start += len(piece)
        return tuple(tokens)


def prompt_pieces(tokenizer: Tokenizer, tokens: Sequence[int], text: str | None) -> list[str]:
    """The text of each token of a prompt. A control token, or the leading space that some tokenizers add, has one only
    if it occurs in the `text` that was tokenized.
    """
    detokenizer = tokenizer.detokenizer()
    pieces: list[str] = []
    length = 0
    for token in tokens:
        piece = detokenizer.add(token)
        if text is not None:
            control = token in tokenizer.control
            piece = tokenizer.token_bytes(token).decode(errors="replace") if control else piece
            if not text.startswith(piece, length):
                added_blank = piece.startswith(" ") and text.startswith(piece[1:], length)
                piece = "" if control else piece[1:] if added_blank else piece
        pieces.append(piece)
        length += len(piece)
    return pieces
