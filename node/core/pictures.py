"""Pictures of a prompt, and the numbers that stand for their places among its tokens."""

import hashlib
from array import array
from dataclasses import dataclass, field

from node.core.errors import BadRequest

_NUMBERS = 2**31
"""Numbers are below it, as tokens are."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture in the size in which the model takes it."""

    width: int
    height: int
    pixels: bytes = field(repr=False)
    """Rows of pixels, each of red, green and blue: [height, width, 3] of uint8."""

    def check(self) -> None:
        """Raises BadRequest unless it has as many bytes as its size says."""
        if min(self.width, self.height) < 1 or len(self.pixels) != 3 * self.width * self.height:
            size = f"{self.width}x{self.height}"
            raise BadRequest(f"A picture of {size} pixels cannot have {len(self.pixels)} bytes.")

    def numbers(self, places: int, vocabulary: int) -> list[int]:
        """The number of each of its places in a prompt. They are beyond the vocabulary, and those of another picture are others,
        so that prompts with different pictures differ wherever tokens are compared, and the same ones do not.
        """
        digest = hashlib.shake_256(b"%d %d " % (self.width, self.height))
        digest.update(self.pixels)
        drawn = array("I", digest.digest(4 * places))
        return [vocabulary + number % (_NUMBERS - vocabulary) for number in drawn]
