"""Parses the JSON of a model's files, which strangers wrote.

`json.loads` lets no other thread of its process run until it is done, so large files are parsed in a sandbox. This module
is the job of that sandbox, too.
"""

import json
import marshal
from collections.abc import Callable, Mapping
from typing import Any

from node.core.models import TensorHeader
from node.model.safetensors_header import parse_header
from node.model.weights import Weights, parse_description, parse_index

Job = Callable[[bytes], bytes]

PARSED_HERE = 2**20
"""Maximum bytes of JSON that is parsed in this process; that takes some 10 ms."""
_ERRORS = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What JSON of an unexpected form raises where it is used."""


def parse_template(raw: bytes) -> str:
    """The chat template of a tokenizer_config.json, the default one of several; empty if it has none."""
    template = json.loads(raw).get("chat_template")
    if isinstance(template, list):
        template = {each["name"]: each["template"] for each in template}.get("default")
    return template if isinstance(template, str) else ""


_PARSERS: Mapping[str, Callable[..., Any]] = {
    "header": parse_header,
    "description": parse_description,
    "index": parse_index,
    "template": parse_template,
}


def make_job() -> Job:
    """Create the sandbox's job. A request is marshalled: name of a parser and its arguments. So is the reply: whether the
    parser succeeded, and its result or the text of its error.
    """

    def answer(request: bytes) -> bytes:
        kind, *given = marshal.loads(request)  # noqa: S302 - written by the node
        try:
            return marshal.dumps((True, _PARSERS[kind](*given)))
        except _ERRORS as error:
            return marshal.dumps((False, f"{error!r:.200}"))

    return answer


class JsonParser:
    """Its methods block. They raise ValueError for JSON of another form, and the errors of the sandbox."""

    def __init__(self, in_sandbox: Job | None = None) -> None:
        """`in_sandbox`: has a request answered by the job in a sandbox; None: all is parsed in this process."""
        self._in_sandbox = in_sandbox

    def header(self, raw: bytes, file: str) -> tuple[dict[str, TensorHeader], int]:
        """See `parse_header`."""
        tensors, end = self._parsed("header", raw, file)
        return _tensors(tensors), end

    def description(self, raw: bytes) -> Weights:
        """Parse the output of `Weights.to_json`, maybe of another node."""
        sizes, tensors = self._parsed("description", raw)
        return Weights(_tensors(tensors), sizes)

    def index(self, raw: bytes) -> dict[str, str]:
        """Map from tensor to file."""
        found: dict[str, str] = self._parsed("index", raw)
        return found

    def template(self, raw: bytes) -> str:
        """See `parse_template`."""
        return str(self._parsed("template", raw))

    def _parsed(self, kind: str, raw: bytes, *more: str) -> Any:
        if self._in_sandbox is None or len(raw) <= PARSED_HERE:
            try:
                return _PARSERS[kind](raw, *more)
            except _ERRORS as error:
                raise ValueError(f"{error!r:.200}") from error
        is_good, found = marshal.loads(self._in_sandbox(marshal.dumps((kind, raw, *more))))  # noqa: S302 - by our own job
        if not is_good:
            raise ValueError(found)
        return found


def _tensors(entries: Mapping[str, tuple[str, str, tuple[int, ...], int]]) -> dict[str, TensorHeader]:
    return {name: TensorHeader(*entry) for name, entry in entries.items()}
