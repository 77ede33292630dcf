"""The report of a check: what was expected of each thing, and what was found."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from node.check.processes import PartFailed


@dataclass(frozen=True, slots=True)
class Line:
    what: str
    found: str
    expected: str = ""
    """Empty for a mere fact."""
    good: bool | None = None
    """Whether what was found is what was expected; None: it is for a reader to judge."""

    def __str__(self) -> str:
        mark = {True: "ok ", False: "BAD", None: "-  "}[self.good]
        expected = f"\n      expected: {self.expected}" if self.expected else ""
        return f"{mark}   {self.what}{expected}\n      found:    {self.found}"


@dataclass(slots=True)
class Report:
    say: Callable[[str], object]
    """Called with each text as soon as it is known, as a later part may bring the machine down."""
    bad: int = 0

    def add(self, *lines: Line) -> None:
        for line in lines:
            self.bad += line.good is False
            self.say(str(line))

    @contextmanager
    def expecting(self, what: str, expected: str = "they work") -> Iterator[None]:
        """A part of the check. If a process of it ends without a result, how it ended is what was found."""
        try:
            yield
        except PartFailed as error:
            self.add(Line(what, str(error), expected, good=False))

    def section(self, title: str) -> None:
        self.say(f"\n{title}")

    def end(self) -> None:
        self.say(f"\n{self.bad} of these are not as expected." if self.bad else "\nAll is as expected.")
