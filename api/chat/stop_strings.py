"""Stop strings, found as the text arrives."""

from collections.abc import Hashable, Iterable, Sequence


class StopMatcher:
    """Ends a text that arrives in pieces before the leftmost stop string, and holds back what may be the start of one.

    The result does not depend on how the text is split: it ends where `text.find(stop)` is least.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._patterns = [Pattern(stop) for stop in stops if stop]
        self._held = ""
        self.given = 0
        """Characters given out so far."""
        self._length = 0
        self._stop: tuple[int, str] | None = None
        """Start of the leftmost complete stop string seen so far, and that string."""
        self.matched: str | None = None
        """The stop string that ended the text; None: it goes on, or ended by itself."""

    def push(self, text: str) -> str:
        """Return the text that is now certain to be shown; empty once one has `matched`."""
        if self.matched is not None:
            return ""
        self._held += text
        for char in text:
            self._length += 1
            for pattern in self._patterns:
                if pattern.step(char):
                    start = self._length - len(pattern.text)
                    if self._stop is None or start < self._stop[0]:
                        self._stop = start, str(pattern.text)
        # A longer stop string that began earlier may still be completed, and would then be the leftmost.
        open_start = min((self._length - pattern.matched for pattern in self._patterns), default=self._length)
        if self._stop and self._stop[0] <= open_start:
            return self.finish()
        return self._give(open_start)

    def finish(self) -> str:
        """The text has ended: return what was held back, up to a stop string. More text is matched by itself."""
        if self.matched is not None:
            return ""
        for pattern in self._patterns:
            pattern.matched = 0
        end = self._length
        if self._stop:
            end, self.matched = self._stop
        return self._give(end)

    def _give(self, end: int) -> str:
        size = end - self.given
        given, self._held = self._held[:size], self._held[size:]
        self.given = end
        return given


class Pattern:
    """Incremental Knuth-Morris-Pratt matcher of one string, which takes one step for each character.

    The failure table is built only as far as a match gets, so a string that never begins costs nothing. String and text
    may consist of anything hashable.
    """

    def __init__(self, text: Sequence[Hashable]) -> None:
        self.text = text
        self.matched = 0
        self._fallback = [0]
        """KMP failure table: for each prefix length from 1, the longest shorter prefix that is also its suffix."""

    def step(self, char: Hashable) -> bool:
        """Take one character. Returns whether the string is now complete."""
        while self.matched and self.text[self.matched] != char:
            self.matched = self._shorter(self.matched)
        self.matched += self.text[self.matched] == char
        if self.matched < len(self.text):
            return False
        self.matched = self._shorter(self.matched)
        return True

    def _shorter(self, length: int) -> int:
        text, fallback = self.text, self._fallback
        while len(fallback) < length:
            char, shorter = text[len(fallback)], fallback[-1]
            while shorter and text[shorter] != char:
                shorter = fallback[shorter - 1]
            fallback.append(shorter + (text[shorter] == char))
        return fallback[length - 1]
