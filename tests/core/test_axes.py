"""Where pictures are in a prompt, and which positions their places have."""

import pytest

from node.core.axes import Axes, Span
from node.core.errors import BadRequest

VOCABULARY = 100
PLACE = 100
PROMPT = [1, 2, *[PLACE] * 6, 3, *[PLACE] * 4, *[PLACE] * 4, 4, 5]
"""With pictures of 2x3, 2x2 and 2x2 places, the last two side by side."""
GRIDS = [(2, 3), (2, 2), (2, 2)]


def test_text_goes_on_behind_a_picture_as_far_as_its_longer_side() -> None:
    axes = Axes(PROMPT, GRIDS, VOCABULARY)
    assert axes.spans(0, len(PROMPT)) == (
        Span(2, 0),
        Span(6, 2, columns=3),
        Span(1, 5),
        Span(4, 6, columns=2),
        Span(4, 8, columns=2),
        Span(2, 10),
    )
    assert axes.shift == 10 - 17
    assert axes.spans(4, 9) == (Span(4, 2, columns=3, first=2), Span(1, 5))
    assert axes.spans(17, 19) == ()


def test_a_picture_of_one_row_has_the_positions_of_a_text() -> None:
    axes = Axes(PROMPT, [(1, 6), (1, 4), (1, 4)], VOCABULARY, mutual=True)
    assert axes.shift == 0
    assert [span.base for span in axes.spans(0, len(PROMPT))] == [0, 2, 8, 9, 13, 17]


@pytest.mark.parametrize(
    ("begin", "wanted", "end"),
    [
        (0, 1, 1),
        (0, 2, 2),
        (0, 3, 2),  # before the picture
        (2, 3, 8),  # behind it, as nothing comes before it
        (4, 5, 8),  # its beginning is in a prefix
        (2, 8, 8),
        (2, 9, 9),
        (2, 10, 9),
        (9, 14, 13),  # between two that are side by side
        (13, 14, 17),
        (17, 18, 18),
    ],
)
def test_a_step_has_whole_pictures_where_their_places_see_each_other(begin: int, wanted: int, end: int) -> None:
    assert Axes(PROMPT, GRIDS, VOCABULARY, mutual=True).whole_end(begin, wanted) == end
    assert Axes(PROMPT, GRIDS, VOCABULARY).whole_end(begin, wanted) == wanted


@pytest.mark.parametrize(
    ("grids", "message"), [([(2, 3)], "more pictures than came"), ([(2, 3), (5, 3)], "lacks some of the 15 places")]
)
def test_places_that_are_not_those_of_the_pictures(grids: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        Axes(PROMPT, grids, VOCABULARY)
