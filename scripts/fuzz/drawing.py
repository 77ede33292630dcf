"""Draws examples of Hypothesis strategies, many at once. The same seed gives the same examples."""

from collections.abc import Iterator
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

Drawn = TypeVar("Drawn")
BATCH = 500


def batches(strategy: st.SearchStrategy[Drawn], count: int, number: int) -> Iterator[list[Drawn]]:
    """Yield `count` examples in all; the same `number` gives the same ones."""
    left = count
    while left > 0:
        drawn = _draw(strategy, min(left, BATCH), number * 1_000_003 + left)
        left -= len(drawn)
        yield drawn


def _draw(strategy: st.SearchStrategy[Drawn], count: int, number: int) -> list[Drawn]:
    drawn: list[Drawn] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def take(example: Any) -> None:
        drawn.append(example)

    take()
    return drawn[:count]
