"""Jobs of sandboxes: one reads a model's tokenizer and chat template, renders chats and encodes texts; another one finds
out whether two models have the same tokens.

Templates may loop, double a text, or take exponential time to compile; tokenizers may contain any regular expression.
"""

import marshal
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from node.core.errors import BadRequest, ContextExceeded, ModelBroken
from node.text.encoder import Encoder
from node.text.fim import FimForm
from node.text.sandbox_server import Job
from node.text.template import ControlString
from node.text.tokenizer_settings import clean

MAX_TEMPLATE = 256 * 2**10
"""Maximum characters of a chat template. The longest known ones have some 30,000."""
MOST_MORE = 1024
"""Maximum tokens that one of two models may have beyond the other's: families add control tokens from size to size."""
_PROBES = ("Hello, world! 123\n\täöü 日本 \U0001f600", " " * 100, "a" * 100, "1" * 100, "\0\x7f\u2028")
"""Texts to try a tokenizer with, as some panic."""


def make_job() -> Job:
    """Create the job. A request is marshalled: "load" or the name of a method of `_Encoder`, its arguments, maximum tokens
    of the result, and the parameter that contains the text, for errors; without one, a longer result is cut. The reply has
    token ids, of 4 bytes each in native byte order.
    """
    encoder: _Encoder

    def answer(request: bytes) -> bytes:
        nonlocal encoder
        name, given, most, param = marshal.loads(request)  # noqa: S302 - written by the node
        if name == "load":
            encoder = _Encoder(**given)
            return b""
        tokens = getattr(encoder, name)(**given)
        if param and len(tokens) > most:  # checked here, as a long reply would burden the node
            said = f"This model's maximum context length is {most} tokens, but the text has {len(tokens)} tokens"
            if tools := given.get("tools"):  # agents' tools are often longer than all they are told
                with suppress(BadRequest):  # of a template that is written for chats with tools
                    without = getattr(encoder, name)(**{**given, "tools": None})
                    said += f", of which {max(0, len(tokens) - len(without))} are its {len(tools)} tools"
            raise ContextExceeded(f"{said}.", param=param)
        return array("I", tokens[:most]).tobytes()

    return answer


class _Encoder(Encoder):
    """The encoder of a folder's tokenizer. Call `set_control_strings` next."""

    def __init__(self, folder: str) -> None:
        """Clean and read the files, and try everything that the node will do with them in its own process.

        Raises ModelBroken.
        """
        hf = _read(folder)
        template = hf.chat_template
        if isinstance(template, str) and len(template) > MAX_TEMPLATE:
            raise ModelBroken(f"The chat template has {len(template):,} characters; {MAX_TEMPLATE:,} are the most.")
        super().__init__(hf, hf, (), FimForm.of(hf.get_vocab()))
        for text in _PROBES:
            self.encode_fragment(text)
            hf.decode(self.encode(text))

    def set_control_strings(self, controls: list[list[Any]]) -> list[int]:
        """Set the control strings; the node derives some of them from the model's family."""
        self._control_strings = [ControlString(*each) for each in controls]
        return []


def _read(folder: str) -> Any:
    clean(Path(folder))
    return AutoTokenizer.from_pretrained(Path(folder), trust_remote_code=False)


def make_comparison() -> Job:
    """Create the job that compares the tokens of two models. A request is marshalled: the two copies of tokenizer files.
    The reply is the difference, empty if there is none.
    """

    def answer(request: bytes) -> bytes:
        one, other = (
            {token: text for text, token in _read(folder).get_vocab().items()}
            for folder in marshal.loads(request)  # noqa: S302 - written by the node
        )
        if abs(len(one) - len(other)) > MOST_MORE:
            return f"it has {len(other):,} tokens instead of {len(one):,}".encode()
        different = [token for token in sorted(one.keys() & other.keys()) if one[token] != other[token]]
        if not different:
            return b""
        first = different[0]
        pair = f"{other[first]!r:.40} instead of {one[first]!r:.40}"
        return f"{len(different):,} of its tokens differ, the first is {first}: {pair}".encode()

    return answer
