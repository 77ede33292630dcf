"""A parameter that the documents call ignored or refused is."""

import pytest

from api.anthropic.schema import MessagesRequest
from api.chat.parameters import Ignored, Refused, not_followed
from api.chat.request import ChatRequest
from api.chat.schema import CompletionRequest, parse
from api.http.errors import Unsupported
from api.ollama.schema import EmbedBody, GenerateBody
from api.openai.embeddings import EmbeddingRequest
from api.responses.schema import ResponseRequest

ASKED = [{"role": "user", "content": "Hello"}]
BODIES = {
    ChatRequest: {"messages": ASKED},
    CompletionRequest: {"prompt": "Hello"},
    EmbeddingRequest: {"input": "Hello"},
    ResponseRequest: {"input": "Hello"},
    MessagesRequest: {"messages": ASKED, "max_tokens": 5},
    GenerateBody: {"prompt": "Hello"},
    EmbedBody: {"input": "Hello"},
}
VALUES = {
    "service_tier": "auto",
    "verbosity": "high",
    "metadata": {"user_id": "me"},
    "max_tool_calls": 1,
    "dimensions": 8,
    **dict.fromkeys(("conversation", "prompt", "template"), "x"),
    **dict.fromkeys(("user", "safety_identifier", "prompt_cache_key"), "x"),
    **{name: [{"name": "x"}] for name in ("audio", "mcp_servers", "container")},
    "echo": True,
    "chat_template": "x",
    "response_format": {"type": "json_object"},
}
MARKED = [(schema, name, mark) for schema in BODIES for name, mark in not_followed(schema).items()]


def test_each_api_has_some():
    assert {schema for schema, _, _ in MARKED} == set(BODIES)


@pytest.mark.parametrize(("schema", "name", "mark"), MARKED, ids=lambda each: getattr(each, "__name__", str(each)))
def test_what_is_marked_is_refused_or_changes_nothing_else(schema, name, mark):
    plain = {"model": "demo", **BODIES[schema]}
    if isinstance(mark, Refused):
        with pytest.raises(Unsupported, match=f"'{name}'") as caught:
            parse(schema, {**plain, name: VALUES[name]})
        assert caught.value.param == name
    else:
        assert isinstance(mark, Ignored)
        with_it, without = parse(schema, {**plain, name: VALUES[name]}), parse(schema, plain)
        apart = {name, "input"}  # items of an input get new ids
        assert with_it.model_dump(exclude=apart) == without.model_dump(exclude=apart)
