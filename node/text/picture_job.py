"""A sandbox's job: decodes a stranger's picture, in the size in which a model takes it."""

import io
import marshal
import struct
import warnings

from PIL import Image, ImageOps, JpegImagePlugin, PngImagePlugin, UnidentifiedImageError, WebPImagePlugin

from node.core.errors import BadRequest
from node.model.picture_form import PictureForm
from node.text.sandbox_server import Job

FORMATS = [
    each.format for each in (PngImagePlugin.PngImageFile, JpegImagePlugin.JpegImageFile, WebPImagePlugin.WebPImageFile)
]
"""What browsers and phones make. Pillow's other decoders never see a byte."""
MAX_PIXELS = 64 * 10**6
"""Of a picture as it is sent. Decoding takes up to 16 bytes for each."""
SIZE = struct.Struct("!II")
"""Width and height, which come before the pixels."""


def make_job() -> Job:
    """Create the job. A request is marshalled: the encoded picture, and the fields of a PictureForm."""
    Image.MAX_IMAGE_PIXELS = MAX_PIXELS

    def answer(request: bytes) -> bytes:
        data, form = marshal.loads(request)  # noqa: S302 - written by the node
        with warnings.catch_warnings(action="ignore"):
            picture = decoded(data, PictureForm(*form))
        return SIZE.pack(*picture.size) + picture.tobytes()

    return answer


def decoded(data: bytes, form: PictureForm) -> Image.Image:
    """The first frame, upright, on white. Raises BadRequest; Pillow's own messages are not told: they have addresses."""
    try:
        picture: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
        if (pixels := picture.width * picture.height) > MAX_PIXELS:
            raise _too_large(f"{pixels:,}")
        return _fitted(_opaque(_upright(picture)), form)
    except BadRequest:
        raise
    except Image.DecompressionBombError as error:
        raise _too_large(f"more than {2 * MAX_PIXELS:,}") from error
    except UnidentifiedImageError as error:
        raise BadRequest("A picture is no PNG, JPEG or WebP, or its beginning is damaged.") from error
    except MemoryError as error:
        raise BadRequest("A picture takes too much memory.") from error
    except Exception as error:  # decoders raise whatever a damaged file leads them to
        raise BadRequest("A picture is damaged, or its end is missing.") from error


def _fitted(picture: Image.Image, form: PictureForm) -> Image.Image:
    """In the size in which a model takes it."""
    size, content, filter_ = form.size(*picture.size), form.content(*picture.size), Image.Resampling(form.resample)
    fitted = picture.resize(content, filter_)
    fitted = fitted if size == content else fitted.crop((0, 0, *size))  # which fills with black
    if len(tiles := form.tiles(*size)) > 1:
        (view,) = tiles[-1]
        fitted.paste(picture.resize((form.tile, form.tile), filter_), view)
    return fitted


def _too_large(pixels: str) -> BadRequest:
    return BadRequest(f"A picture has {pixels} pixels; {MAX_PIXELS:,} are the most.")


def _upright(picture: Image.Image) -> Image.Image:
    """Turned as its EXIF data says, as browsers do; damaged data says nothing."""
    picture.load()
    try:
        return ImageOps.exif_transpose(picture)
    except Exception:  # noqa: BLE001 - as above
        return picture


def _opaque(picture: Image.Image) -> Image.Image:
    """In red, green and blue; what is transparent lies on white."""
    if picture.mode.startswith("I;16"):  # which Pillow would clip at 255
        return picture.convert("I").point(lambda value: value * (1 / 256)).convert("L").convert("RGB")
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    shown = picture.convert("RGBA")
    white = Image.new("RGB", picture.size, "white")
    white.paste(shown, mask=shown)
    return white
