"""Where the pictures of a prompt are, and positions in three axes: those of a text go on by one, in all axes, and those of a picture's
places by row and column.

A picture begins at the position after the text before it, b: its place in row r and column c has (b, b + r, b + c). The
text after it goes on at b + max(rows, columns) (Qwen2-VL, arXiv:2409.12191, section 2.1). So the text behind a picture is shifted
against its number of tokens, unless the picture is one row. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from node.core.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring tokens of a step."""

    tokens: int
    base: int
    """Position of the first token of a text, or of the picture."""
    columns: int = 0
    """Of the picture; 0 for a text."""
    first: int = 0
    """The place in the picture that comes first."""


class Axes:
    """The positions of a prompt's tokens, and of those that follow."""

    def __init__(
        self, tokens: Sequence[int], grids: Sequence[tuple[int, int]], vocabulary: int, *, mutual: bool = False
    ) -> None:
        """`grids`: rows and columns of each picture, in the order of their places. `mutual`: the places of a picture see each
        other. Raises BadRequest if they are not there.
        """
        self._mutual = mutual
        self._spans: list[tuple[int, Span]] = []
        """Of all tokens, each with its end."""
        begin, position = 0, 0
        for rows, columns in grids:
            at = next((k for k in range(begin, len(tokens)) if tokens[k] >= vocabulary), len(tokens))
            end = at + rows * columns
            if end > len(tokens) or any(token < vocabulary for token in tokens[at:end]):
                raise BadRequest(f"The prompt lacks some of the {rows * columns} places of a picture.")
            self._spans += [(at, Span(at - begin, position))] if at > begin else []
            position += at - begin
            self._spans.append((end, Span(end - at, position, columns)))
            begin, position = end, position + max(rows, columns)
        if any(token >= vocabulary for token in tokens[begin:]):
            raise BadRequest("The prompt has places of more pictures than came with it.")
        self._end, self.shift = begin, position - begin
        """Of the tokens after the last picture: their position is so many beyond their number, mostly below 0."""

    def spans(self, begin: int, end: int) -> tuple[Span, ...]:
        """Those of the tokens [begin, end); none if all of them are text behind the last picture."""
        if begin >= self._end:
            return ()
        spans: list[Span] = []
        for span_end, span in self._spans:
            start, stop = max(begin, span_end - span.tokens), min(end, span_end)
            if start < stop:
                skipped = start - (span_end - span.tokens)
                if span.columns:
                    spans.append(replace(span, tokens=stop - start, first=skipped))
                else:
                    spans.append(replace(span, tokens=stop - start, base=span.base + skipped))
        if end > self._end:
            spans.append(Span(end - self._end, self._end + self.shift))
        return tuple(spans)

    def whole_end(self, begin: int, end: int) -> int:
        """Where a step of the tokens from `begin` to about `end` ends, if it may not divide a picture whose places see each other: before
        that one, or behind it if it comes first.
        """
        for span_end, span in self._spans if self._mutual else ():
            if span.columns and span_end - span.tokens < end < span_end:
                return span_end - span.tokens if begin < span_end - span.tokens else span_end
        return end
