"""Where a text ends: stop strings, found as the text arrives."""

from collections.abc import Hashable, Iterable, Sequence


class StopMatcher:
    """Cuts a text that arrives in pieces before the leftmost stop string, and holds back what may begin one.

    The result does not depend on how the text was cut into pieces: it ends where `text.find(stop)` is least.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._patterns = [Pattern(stop) for stop in stops if stop]
        self._held = ""
        self.given = 0
        """Characters given out so far."""
        self._length = 0
        self._cut: int | None = None
        """Where the leftmost whole stop string seen so far begins."""
        self.matched = False

    def push(self, text: str) -> str:
        """The text that is now certain to be shown. Once `matched`, there is no more."""
        if self.matched:
            return ""
        self._held += text
        for char in text:
            self._length += 1
            for pattern in self._patterns:
                if pattern.step(char):
                    start = self._length - len(pattern.text)
                    self._cut = start if self._cut is None else min(self._cut, start)
        # A longer stop string may have begun before one that is complete: it would then be the leftmost.
        open_start = min((self._length - pattern.matched for pattern in self._patterns), default=self._length)
        if self._cut is not None and self._cut <= open_start:
            self.matched = True
            return self._give(self._cut)
        return self._give(open_start)

    def finish(self) -> str:
        """No more text will come: give out what was held back, up to a stop string."""
        if self.matched:
            return ""
        self.matched = self._cut is not None
        return self._give(self._length if self._cut is None else self._cut)

    def _give(self, end: int) -> str:
        size = end - self.given
        given, self._held = self._held[:size], self._held[size:]
        self.given = end
        return given


class Pattern:
    """How much of one string the text ends with (Knuth, Morris and Pratt: one step for each character).

    Their table is made as far as the text has come, so a string that never begins costs nothing. The string and the text may also be of other things than characters.
    """

    def __init__(self, text: Sequence[Hashable]) -> None:
        self.text = text
        self.matched = 0
        self._fallback = [0]
        """For each length, from 1, the longest shorter beginning that is also an end of it."""

    def step(self, char: Hashable) -> bool:
        """Take one character; whether the string is now complete."""
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
