"""Every body, however odd, becomes a request or is refused with a reason."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.chat.request import ChatRequest
from api.chat.schema import CompletionRequest, parse
from api.http.json_object import parse_object
from node.core.errors import BadRequest

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["user", "text", "assistant", "tool", "json_object", "function", "auto", "image_url"]),
)
names = st.sampled_from(["role", "content", "type", "text", "name", "tool_calls", "function", "arguments", "id", "5"])
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=4)),
    max_leaves=8,
)
GOOD = {
    ChatRequest: {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    CompletionRequest: {"model": "m", "prompt": "x"},
}


def outcome(attempt):
    """Return the result and the refusal; one of them is None."""
    try:
        return attempt(), None
    except BadRequest as refusal:
        return None, refusal


@pytest.mark.slow
@pytest.mark.parametrize("schema", [ChatRequest, CompletionRequest])
@given(st.data())
@settings(max_examples=300)
def test_any_body_is_a_request_or_a_refusal(schema, data):
    fields = st.dictionaries(st.sampled_from(sorted(schema.model_fields)), values, max_size=3)
    body = parse_object(json.dumps(GOOD[schema] | data.draw(fields)).encode())
    request, refusal = outcome(lambda: parse(schema, body))
    if refusal:
        assert refusal.param
        assert len(refusal.message) < 500
        return
    sampling = request.sampling({})
    assert 0 <= sampling.seed < 2**63
    assert sampling.top_k >= 0


@given(st.binary(max_size=60))
def test_any_bytes_are_an_object_or_a_refusal(data):
    value, refusal = outcome(lambda: parse_object(data))
    assert refusal.message if refusal else isinstance(value, dict)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("  x\n", "  x\n"),
        ("", ""),
        ([], ""),
        ([{"type": "text", "text": " a"}, {"type": "text", "text": "b "}], " ab "),
    ],
)
def test_content_is_kept_as_it_is(content, text):
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    assert parse(ChatRequest, body).messages[0].content == text


@pytest.mark.parametrize(("seed", "used"), [(0, 0), (7, 7), (-1, 2**63 - 1), (2**63 - 1, 2**63 - 1)])
def test_seeds(seed, used):
    body = GOOD[ChatRequest] | {"seed": seed}
    assert parse(ChatRequest, body).sampling({}).seed == used
