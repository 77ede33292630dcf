"""Splits a streamed answer into channels at the markers of its model family. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from api.chat.stop_strings import Pattern
from node.text.tokenizer import Symbol


class Glyph(NamedTuple):
    """A character or control token of an answer, and the position of the token that it comes from."""

    symbol: Symbol
    position: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of glyphs in one channel. If `to` is set, the glyphs are a marker that leads from the channel to `to`."""

    channel: str
    glyphs: Sequence[Glyph]
    to: str | None = None


class Channels:
    """Incremental splitter. It holds back glyphs that may begin a marker, in whole tokens."""

    def __init__(self, turns: Mapping[str, Sequence[tuple[Sequence[Symbol], str]]], channel: str) -> None:
        """`turns`: (marker, next channel) pairs of each channel. `channel`: where the answer begins."""
        self._turns = {name: [(Pattern(marker), to) for marker, to in edges if marker] for name, edges in turns.items()}
        self._channel = channel
        self._held: list[Glyph] = []

    def push(self, glyphs: Iterable[Glyph]) -> list[Piece]:
        pieces: list[Piece] = []
        for glyph in glyphs:
            self._held.append(glyph)
            # Every pattern must see each glyph. If several match here, the longest wins.
            ended = [(pattern, to) for pattern, to in self._turns.get(self._channel, ()) if pattern.step(glyph.symbol)]
            if ended:
                pattern, to = max(ended, key=lambda turn: len(turn[0].text))
                self._give(pieces, len(self._held) - len(pattern.text))
                pieces.append(Piece(self._channel, self._held, to))
                self._held, self._channel = [], to
                for pattern, _ in self._turns.get(to, ()):
                    pattern.matched = 0
        # In no possible marker, nor in a token with a part of one:
        open_ = max((pattern.matched for pattern, _ in self._turns.get(self._channel, ())), default=0)
        certain = len(self._held) - open_
        while 0 < certain < len(self._held) and self._held[certain - 1].position == self._held[certain].position:
            certain -= 1
        self._give(pieces, certain)
        return pieces

    def finish(self) -> list[Piece]:
        """The answer has ended: give out the glyphs held back, which are not a marker."""
        pieces: list[Piece] = []
        self._give(pieces, len(self._held))
        return pieces

    def _give(self, pieces: list[Piece], size: int) -> None:
        if size:
            pieces.append(Piece(self._channel, self._held[:size]))
            self._held = self._held[size:]
