"""In which size a family's models take a picture, as the image processors of transformers and mlx-vlm have it. Pure."""

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from node.core.errors import BadRequest

MAX_PIXELS = 2**21
"""Qwen's models take six times as many, for which a Mac's tower would need minutes: attention grows with their square."""
_MAX_ASPECT = 200
MAX_TILES = 16
"""Most tiles of a picture beside the view of the whole, as published for Llama 4; plans do not know the processor's settings."""
_MAX_PADDED = 510
"""Patches of a side for which mlx-vlm's Kimi-VL has positions, in whole cells."""

Sizing = Literal["square", "longest", "area", "fill", "pad", "canvas", "tiles"]
Size = tuple[int, int]
"""Width and height."""


class SizeLimits(NamedTuple):
    least: int
    most: int
    """Fewest and most pixels: of a side (square, longest), of a tile and of all (tiles), or of the whole picture."""
    cell: int
    patch: int
    """Pixels of the sides of a cell, and of one of its patches."""


def size_of(sizing: Sizing, bounds: SizeLimits, width: int, height: int) -> Size:
    """The size that a picture of so many pixels gets, in whole cells. Raises BadRequest for one that is far longer than wide."""
    if sizing not in ("square", "longest", "tiles") and max(width, height) > _MAX_ASPECT * min(width, height):
        raise BadRequest(
            f"A picture of {width}x{height} is too long: {_MAX_ASPECT}:1 is the most that the model takes."
        )
    return _SIZES[sizing](bounds, width, height)


def content_of(sizing: Sizing, bounds: SizeLimits, width: int, height: int) -> Size:
    """The picture's own size within `size_of`, of which the rest, at the right and below, is black."""
    if sizing in _CONTENTS:
        return _CONTENTS[sizing](bounds, width, height)
    whole = size_of(sizing, bounds, width, height)
    if sizing != "canvas":
        return whole
    scale = min(whole[0] / width, whole[1] / height)
    scale = min(1.0, scale) if width * height >= bounds.least else scale
    return max(1, min(whole[0], math.floor(width * scale))), max(1, min(whole[1], math.floor(height * scale)))


def tiles_of(bounds: SizeLimits, width: int, height: int) -> list[list[tuple[int, int]]]:
    """Left and upper edges of the tiles of a picture that has its size, by rows; the last row is the view of the whole."""
    side = math.isqrt(bounds.least)
    *rows, view = ([(left, top) for left in range(0, width, side)] for top in range(0, height, side))
    return [*rows, view[:1]]


def may_be(sizing: Sizing, bounds: SizeLimits, width: int, height: int) -> bool:
    """Whether `size_of` gives this size, with these bounds or others of the same kind of model."""
    _, most, cell, patch = bounds
    if sizing == "square":
        return width == height == most
    if width % cell or height % cell:
        return False
    match sizing:
        case "longest":
            return max(width, height) <= math.ceil(most / cell) * cell
        case "pad":
            return max(width, height) <= _MAX_PADDED * patch and width * height <= most + cell * (width + height)
        case "tiles":
            most_of_any = bounds._replace(most=(MAX_TILES + 1) * bounds.least)
            return (width, height) in (_tiled(bounds, *grid) for grid in _grids(most_of_any))
        case _:
            return width * height <= (MAX_PIXELS + cell**2 if sizing == "area" else most)


def _square(bounds: SizeLimits, _width: int, _height: int) -> Size:
    """All get the same (Gemma 3)."""
    return bounds.most, bounds.most


def _longest(bounds: SizeLimits, width: int, height: int) -> Size:
    """One whose longest side is too long is made smaller (Pixtral)."""
    ratio = max(width, height) / bounds.most
    if ratio > 1:
        width, height = max(1, math.floor(width / ratio)), max(1, math.floor(height / ratio))
    return _whole_cells(bounds, width, height)


def _area(bounds: SizeLimits, width: int, height: int) -> Size:
    """The area comes within bounds (Qwen2-VL)."""
    least, most, cell, _ = bounds
    taken = round(width / cell) * round(height / cell) * cell * cell
    if taken > most:
        scale = math.sqrt(width * height / most)
        columns, rows = (max(1, math.floor(side / scale / cell)) for side in (width, height))
    elif taken < least:
        scale = math.sqrt(least / (width * height))
        columns, rows = (math.ceil(side * scale / cell) for side in (width, height))
    else:
        columns, rows = round(width / cell), round(height / cell)
    return columns * cell, rows * cell


def _fill(bounds: SizeLimits, width: int, height: int) -> Size:
    """It becomes as large as may be, with whole cells of both sides (Gemma 4)."""
    _, most, cell, _ = bounds
    factor = math.sqrt(most / (width * height))
    columns, rows = (math.floor(factor * side / cell) for side in (width, height))
    if not rows:
        columns, rows = min(width // height, most // cell**2), 1
    elif not columns:
        columns, rows = 1, min(height // width, most // cell**2)
    return columns * cell, rows * cell


def _pad(bounds: SizeLimits, width: int, height: int) -> Size:
    """It is made smaller if it has too many patches, and black fills the last cells (Kimi-VL)."""
    width, height = _whole_cells(bounds, *_padded_content(bounds, width, height))
    if max(width, height) > _MAX_PADDED * bounds.patch:
        raise BadRequest(f"A picture is too long: the model takes {_MAX_PADDED * bounds.patch} pixels of a side.")
    return width, height


def _padded_content(bounds: SizeLimits, width: int, height: int) -> Size:
    most, patches = bounds.most // bounds.patch**2, (width // bounds.patch) * (height // bounds.patch)
    scale = math.sqrt(most / patches) if patches > most else 1
    return max(1, int(width * scale)), max(1, int(height * scale))


def _canvas(bounds: SizeLimits, width: int, height: int) -> Size:
    """It lies on a black canvas, whose area comes within bounds (GLM-5-Next)."""
    least, most, cell, _ = bounds
    columns, rows = _whole_cells(bounds, width, height)
    if columns * rows < least:
        scale = math.sqrt(least / (width * height))
        columns, rows = _whole_cells(bounds, max(1, math.ceil(width * scale)), max(1, math.ceil(height * scale)))
    if columns * rows <= most:
        return columns, rows
    contents = ((max(1, width * high // height), high) for high in range(min(height, most // cell), 0, -1))
    fitting = (_whole_cells(bounds, *content) for content in contents)
    return next((size for size in fitting if size[0] * size[1] <= most), (cell, cell))


def _tiles(bounds: SizeLimits, width: int, height: int) -> Size:
    """It lies on a canvas of tiles, whose last row, if there are several, is a tile with a view of the whole (Llama 4)."""
    return _tiled(bounds, *_best_grid(bounds, width, height))


def _tiled(bounds: SizeLimits, columns: int, rows: int) -> Size:
    side = math.isqrt(bounds.least)
    return columns * side, (rows + (columns * rows > 1)) * side


def _grids(bounds: SizeLimits) -> list[Size]:
    """Columns and rows of all canvases of tiles."""
    most = bounds.most // bounds.least - 1  # without the view of the whole
    return [(columns, rows) for columns in range(1, most + 1) for rows in range(1, most // columns + 1)]


def _best_grid(bounds: SizeLimits, width: int, height: int) -> Size:
    """Of the canvases that hold the whole picture, those to which it could be enlarged least; else those for which it is made smaller
    least. Of these the one with the fewest tiles.
    """
    side = math.isqrt(bounds.least)

    def badness(grid: Size) -> tuple[bool, float, int]:
        columns, rows = grid
        scale = min(columns * side / width, rows * side / height)
        return scale < 1, scale if scale >= 1 else -scale, columns * rows

    return min(_grids(bounds), key=badness)


def _tiled_content(bounds: SizeLimits, width: int, height: int) -> Size:
    """It is enlarged to one tile at most."""
    side = math.isqrt(bounds.least)
    columns, rows = _best_grid(bounds, width, height)
    wide, high = min(max(width, side), columns * side), min(max(height, side), rows * side)
    if wide / width < high / height:
        return wide, max(1, min(math.floor(height * (wide / width)), high))
    return max(1, min(math.floor(width * (high / height)), wide)), high


def _whole_cells(bounds: SizeLimits, width: int, height: int) -> Size:
    cell = bounds.cell
    return math.ceil(width / cell) * cell, math.ceil(height / cell) * cell


_SIZES: Mapping[Sizing, Callable[[SizeLimits, int, int], Size]] = {
    "square": _square,
    "longest": _longest,
    "area": _area,
    "fill": _fill,
    "pad": _pad,
    "canvas": _canvas,
    "tiles": _tiles,
}
_CONTENTS: Mapping[Sizing, Callable[[SizeLimits, int, int], Size]] = {"pad": _padded_content, "tiles": _tiled_content}
