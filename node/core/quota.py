"""Limits how much of one kind is done for others at once."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from node.core.errors import Overloaded


class Quota:
    def __init__(self, what: str, most: int, of_one: int) -> None:
        """`what`: is done for them, for errors, such as "KV is sent". `most`: times in all, and `of_one` caller."""
        self._what = what
        self._most = most
        self._of_one = of_one
        self.used = Counter[str]()
        """Times it is done for each caller now."""

    @contextmanager
    def use(self, caller: str) -> Iterator[None]:
        """Inside, it is done once for a caller. Raises Overloaded if it may not be."""
        total, own = self.used.total(), self.used[caller]
        if total >= self._most or own >= self._of_one:
            raise Overloaded(f"{self._what} {total} times already, {own} times for {caller}.")
        self.used[caller] += 1
        try:
            yield
        finally:
            self.used -= Counter((caller,))  # without those for whom it is done no more
