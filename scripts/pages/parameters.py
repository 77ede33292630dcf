"""The tables of parameters in docs/api.md, ollama.md and anthropic.md that say what is not followed as it is, drawn from the schemas
that check the requests.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from pydantic import BaseModel

import api.anthropic.schema as anthropic
import api.ollama.schema as ollama
import api.responses.schema as responses
from api.chat.forms import KINDS, OFF
from api.chat.parameters import Ignored, not_followed
from api.chat.request import ChatRequest
from api.chat.schema import PEER_NAMES, PEER_PARAMETERS, CompletionRequest, GenerationRequest
from api.openai.embeddings import EmbeddingRequest

BEGIN, END = "<!-- parameters: drawn by scripts/pages.py -->\n", "<!-- end of parameters -->"
HOLDS = {
    "json": "a JSON schema",
    "regex": "a regular expression",
    "grammar": "a grammar of Lark or GBNF",
    "choice": "texts to choose from",
    "object": "any JSON object",
}
"""What the kinds of `KINDS` are in words."""
Row = tuple[str, str, str]
"""A request, what becomes of parameters, and their names."""


def _fates(request: str, *schemas: type[BaseModel], besides: Iterable[str] = ()) -> Iterator[Row]:
    """What is ignored and refused in a request, by the reasons; `besides`: what is told elsewhere."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, mark in {name: mark for schema in schemas for name, mark in not_followed(schema).items()}.items():
        if name in besides:
            continue
        if isinstance(mark, Ignored):
            found[mark.but or "ignored"].append(name)
        else:
            found[f"refused unless empty{mark.why and ': '}{mark.why}"].append(name)
    yield from ((request, fate, _listed(names)) for fate, names in found.items())


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _renamed(names: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}` → `{to}`" for name, to in names.items() if name != to)


def _of_openai() -> Iterator[Row]:
    both, every = "chat, completions", "chat, completions, responses"
    for kind, words in HOLDS.items():
        yield every, f"the form of the answer: {words}", _listed(name for name in KINDS if KINDS[name] == kind)
    yield every, "as by another name", _renamed(PEER_NAMES)
    for values in {repr(each): each for each in OFF.values()}.values():
        unless = " or ".join(f"`{json.dumps(value)}`" for value in (*values, None))
        yield every, f"refused unless {unless}", _listed(name for name in OFF if repr(OFF[name]) == repr(values))
    yield from _fates(both, GenerationRequest)
    yield from _fates("chat", ChatRequest, besides=not_followed(GenerationRequest))
    yield from _fates("completions", CompletionRequest, besides=not_followed(GenerationRequest))
    yield from _fates("embeddings", EmbeddingRequest)
    yield "responses", "as in chat, not in OpenAI's Responses API", _listed(responses.EXTENSIONS)
    yield from _fates("responses", responses.ResponseRequest)


def _of_anthropic() -> Iterator[Row]:
    request = "messages"
    yield request, "as in chat, not in Anthropic's API", _listed(anthropic.EXTENSIONS)
    yield (
        request,
        "[as in chat](api.md#mapped-ignored-refused), where other servers' names are told",
        _listed(PEER_PARAMETERS),
    )
    yield request, "`tool_choice.type`, and chat's `tool_choice`", _renamed(anthropic.CHOICES)
    yield from _fates(request, anthropic.MessagesRequest)


def _of_ollama() -> Iterator[Row]:
    yield "`options`", "chat's by another name", _renamed(ollama.SHARED)
    yield from _fates("chat, generate", ollama.ChatBody, ollama.GenerateBody)
    yield from _fates("embed", ollama.EmbedBody)


def _drawn(rows: Iterator[Row], text: str) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit("A page has no place for its parameters.")
    lines = [f"| {' | '.join(row)} |" for row in [("request", "", "parameters"), ("---",) * 3, *rows] if row[2]]
    every = ("each", "ignored", "all that the tables of this page do not name")
    return "".join(
        [before, begin, "\n", *(f"{line}\n" for line in [*lines, f"| {' | '.join(every)} |"]), "\n", end, after]
    )


def openai_page(text: str) -> str:
    """Return the page with its table drawn anew; so do the others."""
    return _drawn(_of_openai(), text)


def anthropic_page(text: str) -> str:
    return _drawn(_of_anthropic(), text)


def ollama_page(text: str) -> str:
    return _drawn(_of_ollama(), text)
