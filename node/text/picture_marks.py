"""With which tokens a family's prompts hold pictures."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from node.core.errors import BadRequest
from node.core.pictures import Picture
from node.model.picture_form import PictureForm

_FAMILIES: Sequence[tuple[str, Mapping[str, str], Mapping[str, str]]] = (
    ("[IMG]", {"row_end": "[IMG_BREAK]", "end": "[IMG_END]"}, {}),
    ("<|image_pad|>", {}, {}),
    ("<image_soft_token>", {}, {"<start_of_image>": "\n\n<start_of_image><image_soft_token><end_of_image>\n\n"}),
    (
        "<|patch|>",
        {
            "picture": "<|image|>",
            "start": "<|image_start|>",
            "between": "<|tile_x_separator|>",
            "row_end": "<|tile_y_separator|>",
            "last": "<|image|>",
            "end": "<|image_end|>",
        },
        {},
    ),
    ("<|image|>", {}, {"<|image|>": "<|image><|image|><image|>"}),
    ("<|image|>", {}, {}),
    ("<|media_pad|>", {}, {}),
)
"""Mistral's, Qwen's, Gemma 3's, Llama 4's, Gemma 4's, GLM's and Kimi's: `place`, other marks, and `meanings` of PictureMarks."""


@dataclass(frozen=True, slots=True)
class PictureMarks:
    """Ids of a family's tokens."""

    place: int
    """Stands in the family's own prompts for each place of a picture."""
    picture: int | None = None
    """Stands in a rendered chat for a picture, if `place` does not."""
    start: int | None = None
    """Before the first place."""
    between: int | None = None
    """Between two runs of places of a row."""
    row_end: int | None = None
    """Behind each row of runs but the last one."""
    last: int | None = None
    """Before the last row, which is a view of the whole where pictures have tiles."""
    end: int | None = None
    """Behind the last place."""
    meanings: Mapping[str, str] = field(default_factory=dict)
    """The texts for which control strings of the family's templates stand, where they leave that to its processor."""

    @property
    def tokens(self) -> frozenset[int]:
        marks = (self.place, self.picture, self.start, self.between, self.row_end, self.last, self.end)
        return frozenset(token for token in marks if token is not None)

    @classmethod
    def of(cls, vocabulary: Mapping[str, int]) -> "PictureMarks | None":
        """Those of a tokenizer with these tokens; None if it has those of no family."""
        for place, marks, meanings in _FAMILIES:
            meant = re.findall(r"<[^<>]+>", "".join(meanings.values()))
            if {place, *marks.values(), *meant} <= vocabulary.keys():
                others = {name: vocabulary[text] for name, text in marks.items()}
                return cls(vocabulary[place], **others, meanings=meanings)
        return None

    def lay_out(self, rendered: Sequence[int], pictures: Sequence[Picture], form: PictureForm) -> list[int]:
        """The tokens of a rendered chat, with the numbers of its pictures' places. Raises BadRequest if the chat has not one mark
        for each picture.
        """
        mark = self.place if self.picture is None else self.picture
        if (shown := rendered.count(mark)) != len(pictures):
            what = f"The model's chat template shows {shown} of the {len(pictures)} pictures"
            raise BadRequest(f"{what}.", hint="Many take them only in messages of the user.", param="messages")
        waiting, laid = iter(pictures), list[int | None]()
        for token in rendered:
            if token != mark:
                laid.append(token)
                continue
            picture = next(waiting)
            *rows, last = form.runs(picture.width, picture.height)
            numbers = iter(picture.numbers(form.places(picture.width, picture.height), form.vocabulary))
            laid.append(self.start)
            for row in rows:
                laid += (*self._row(row, numbers), self.row_end)
            laid += (self.last, *self._row(last, numbers), self.end)
        return [token for token in laid if token is not None]

    def _row(self, runs: Sequence[int], numbers: Iterator[int]) -> Iterator[int | None]:
        for k, places in enumerate(runs):
            yield from (self.between,) if k else ()
            yield from islice(numbers, places)
