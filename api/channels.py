"""Splits an answer at its model family's markers, as it arrives. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from api.text import Pattern
from node.engine.tokenizer import Symbol


class Glyph(NamedTuple):
    """A character or a control token of an answer, and the position of the token that it comes from."""

    symbol: Symbol
    position: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of an answer in one channel; or a marker, which leads from it to the channel `to`."""

    channel: str
    glyphs: Sequence[Glyph]
    to: str | None = None


class Channels:
    """Gives out what is certain: what may be the beginning of a marker is held back, in whole tokens."""

    def __init__(self, turns: Mapping[str, Sequence[tuple[Sequence[Symbol], str]]], channel: str) -> None:
        """`turns`: for each channel its markers, and the channel that each leads to."""
        self._turns = {name: [(Pattern(marker), to) for marker, to in edges if marker] for name, edges in turns.items()}
        self._channel = channel
        self._held: list[Glyph] = []

    def push(self, glyphs: Iterable[Glyph]) -> list[Piece]:
        pieces: list[Piece] = []
        for glyph in glyphs:
            self._held.append(glyph)
            # All of them must see it; of several that end here the longest counts.
            ended = [(pattern, to) for pattern, to in self._turns.get(self._channel, ()) if pattern.step(glyph.symbol)]
            if ended:
                pattern, to = max(ended, key=lambda turn: len(turn[0].text))
                self._turn(pieces, len(pattern.text), to)
        self._give(pieces, self._certain())
        return pieces

    def finish(self) -> list[Piece]:
        """Nothing more will come: what was held back is no marker."""
        pieces: list[Piece] = []
        self._give(pieces, len(self._held))
        return pieces

    def _turn(self, pieces: list[Piece], size: int, to: str) -> None:
        self._give(pieces, len(self._held) - size)
        pieces.append(Piece(self._channel, self._held, to))
        self._held = []
        self._channel = to
        for pattern, _ in self._turns.get(to, ()):
            pattern.matched = 0

    def _give(self, pieces: list[Piece], size: int) -> None:
        if size:
            pieces.append(Piece(self._channel, self._held[:size]))
            self._held = self._held[size:]

    def _certain(self) -> int:
        """How many of the glyphs that are held are no part of a marker that may yet come, nor of a token that has one."""
        open_ = max((pattern.matched for pattern, _ in self._turns.get(self._channel, ())), default=0)
        size = len(self._held) - open_
        while 0 < size < len(self._held) and self._held[size - 1].position == self._held[size].position:
            size -= 1
        return size
