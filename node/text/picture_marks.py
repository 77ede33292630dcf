"""With which tokens a family's prompts hold pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from node.core.errors import BadRequest
from node.core.pictures import Picture
from node.model.picture_form import PictureForm

_FAMILIES = (("[IMG]", "[IMG_BREAK]", "[IMG_END]"), ("<|image_pad|>",))
"""Mistral's and Qwen's."""


@dataclass(frozen=True, slots=True)
class PictureMarks:
    """Ids of a family's tokens."""

    place: int
    """Stands in a rendered chat for a picture, and in the family's own prompts for each place of it."""
    row_end: int | None = None
    """Between two rows of places."""
    end: int | None = None
    """After the last one."""

    @property
    def tokens(self) -> frozenset[int]:
        return frozenset(token for token in (self.place, self.row_end, self.end) if token is not None)

    @classmethod
    def of(cls, vocabulary: Mapping[str, int]) -> "PictureMarks | None":
        """Those of a tokenizer with these tokens; None if it has those of no family."""
        found = (names for names in _FAMILIES if all(name in vocabulary for name in names))
        return next((cls(*map(vocabulary.__getitem__, names)) for names in found), None)

    def lay_out(self, rendered: Sequence[int], pictures: Sequence[Picture], form: PictureForm) -> list[int]:
        """The tokens of a rendered chat, with the numbers of its pictures' places. Raises BadRequest if the chat has not one place
        for each picture.
        """
        if (shown := rendered.count(self.place)) != len(pictures):
            what = f"The model's chat template shows {shown} of the {len(pictures)} pictures"
            raise BadRequest(f"{what}.", hint="Many take them only in messages of the user.", param="messages")
        waiting = iter(pictures)
        return [
            each
            for token in rendered
            for each in (self._laid_out(next(waiting), form) if token == self.place else (token,))
        ]

    def _laid_out(self, picture: Picture, form: PictureForm) -> list[int]:
        rows, columns = form.grid(picture.width, picture.height)
        numbers = picture.numbers(rows * columns, form.vocabulary)
        if self.row_end is None or self.end is None:
            return numbers
        laid: list[int] = []
        for start in range(0, len(numbers), columns):
            laid += (*numbers[start : start + columns], self.row_end)
        laid[-1] = self.end
        return laid
