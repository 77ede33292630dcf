"""A sandbox's job: reads a model's tokenizer and chat template, renders chats and encodes texts.

Templates may loop, double a text, or take exponential time to compile; tokenizers may contain any regular expression.
"""

import json
import marshal
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from node.core.errors import ContextExceeded, ModelBroken, PippinError
from node.text.encoder import Encoder, check_length
from node.text.sandbox_server import Job
from node.text.template import ControlString, Segment
from node.text.tokenizer_settings import clean

TOKENS, ERROR = b"\0", b"\1"
"""First byte of a reply: token ids follow, of 4 bytes each in native byte order, or a PippinError as JSON."""
MAX_TEMPLATE = 256 * 2**10
"""Maximum characters of a chat template. The longest known ones have some 30,000."""
_PROBES = ("Hello, world! 123\n\täöü 日本 \U0001f600", " " * 100, "a" * 100, "1" * 100, "\0\x7f\u2028")
"""Texts to try a tokenizer with, as some panic."""


def make_job() -> Job:
    """Create the job. A request is marshalled: name of a method of `_TokenizerJob`, its arguments, maximum tokens of
    the result, and the parameter that contains the text, for errors.
    """
    tokenizer = _TokenizerJob()

    def answer(request: bytes) -> bytes:
        name, given, most, param = marshal.loads(request)  # noqa: S302 - written by the node
        try:
            tokens = getattr(tokenizer, name)(**given)
            if len(tokens) > most:  # checked here, as a long reply would burden the node
                raise ContextExceeded(
                    f"This model's maximum context length is {most} tokens, but the text has {len(tokens)} tokens.",
                    param=param,
                )
            return TOKENS + array("I", tokens).tobytes()
        except PippinError as error:
            fields = {"code": error.code, "message": error.message, "hint": error.hint, "param": error.param}
            return ERROR + json.dumps(fields).encode()

    return answer


class _TokenizerJob:
    """Methods of the job. Call `load` first, then `set_control_strings`."""

    _hf: Any
    _encoder: Encoder

    def load(self, folder: str) -> list[int]:
        """Clean and read the files, and try everything that the node will do with them in its own process.

        Raises ModelBroken.
        """
        clean(Path(folder))
        self._hf = AutoTokenizer.from_pretrained(Path(folder), trust_remote_code=False)
        template = self._hf.chat_template
        if isinstance(template, str) and len(template) > MAX_TEMPLATE:
            raise ModelBroken(f"The chat template has {len(template):,} characters; {MAX_TEMPLATE:,} are the most.")
        encoder = Encoder(self._hf, self._hf, ())
        for text in _PROBES:
            encoder.encode_fragment(text)
            self._hf.decode(encoder.encode(text))
        return []

    def set_control_strings(self, controls: list[list[Any]]) -> list[int]:
        """Set the control strings; the node derives some of them from the model's family."""
        self._encoder = Encoder(self._hf, self._hf, [ControlString(*each) for each in controls])
        return []

    def encode(self, text: str, bos: bool, first: int | None) -> list[int]:
        """The `first` tokens of a text; None: all."""
        return self._encoder.encode(text, bos=bos)[:first]

    def encode_prediction(self, text: str, first: int) -> list[int]:
        """The `first` tokens of a text."""
        return self._encoder.encode_prediction(text)[:first]

    def encode_pieces(self, pieces: Sequence[tuple[str, bool]]) -> list[int]:
        return self._encoder.encode_pieces(pieces)

    def encode_segments(self, segments: Sequence[tuple[str, bool]]) -> list[int]:
        return self._encoder.encode_segments([Segment(*each) for each in segments])

    def encode_chat(
        self, messages: Any, tools: Any, more: dict[str, Any], context: int, max_token_chars: int
    ) -> list[int]:
        segments = self._encoder.render(messages, tools, **more)
        check_length(sum(len(segment.text) for segment in segments), context, max_token_chars, param="messages")
        return self._encoder.encode_segments(segments)
