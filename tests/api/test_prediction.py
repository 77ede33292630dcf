"""Predicted outputs: what a request may predict, what the backend gets of it, and what the usage says of it.

The scripted backend answers as it would without a prediction.
"""

import json

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.core.guesses import Prediction

MODEL = "pippin/demo"
USER = [{"role": "user", "content": "Hello"}]
TEXT = "The cat sat on the mat, and the dog ran to the river."


def predicted(content=TEXT):
    return {"prediction": {"type": "content", "content": content}}


def counts(usage):
    """Accepted and rejected tokens of the prediction."""
    details = usage["completion_tokens_details"]
    return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]


@pytest.fixture
def tokens(tokenizer):
    return tokenizer.encode_prediction(TEXT)


def answer_with(server, tokens):
    server.backend.script = lambda request: [*tokens, *server.backend.model.tokenizer.eos]


ASK = pytest.mark.parametrize("ask", ["chat", "complete"])


@ASK
async def test_a_prediction_that_comes_true(server, tokens, ask):
    server.backend.say(TEXT)
    answer = (await getattr(server, ask)(max_tokens=100, **predicted())).json
    assert answer["usage"]["completion_tokens_details"] == {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": len(tokens),
        "rejected_prediction_tokens": 0,
    }
    assert answer["usage"]["completion_tokens"] == len(tokens) + 1
    assert server.backend.requests[0].prediction == tuple(tokens)
    choice = answer["choices"][0]
    assert (choice["text"] if ask == "complete" else choice["message"]["content"]) == TEXT


async def test_a_prediction_that_comes_true_in_part(server, tokens):
    answer_with(server, [*tokens[:4], 700, *tokens[5:]])
    assert counts((await server.chat(**predicted())).json["usage"]) == (len(tokens) - 1, 1)
    answer_with(server, tokens[:4])
    assert counts((await server.chat(**predicted())).json["usage"]) == (4, len(tokens) - 4)
    answer_with(server, [token for token in range(700, 720) if token not in tokens])
    assert counts((await server.chat(**predicted())).json["usage"]) == (0, len(tokens))


@ASK
async def test_the_usage_of_a_stream_is_that_of_a_plain_answer(server, tokens, ask):
    answer_with(server, tokens[:6])
    body = {"max_tokens": 100, **predicted()}
    plain = (await getattr(server, ask)(**body)).json["usage"]
    streamed = await getattr(server, ask)(stream=True, stream_options={"include_usage": True}, **body)
    *chunks, last = streamed.events
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    assert last["usage"] == plain
    assert counts(plain) == (6, len(tokens) - 6)
    assert (
        b'"completion_tokens_details":{"reasoning_tokens":0,"accepted_prediction_tokens":6,'
        b'"rejected_prediction_tokens":%d}}}\n\ndata: [DONE]\n\n' % (len(tokens) - 6)
    ) in streamed.body
    assert all("usage" not in chunk for chunk in (await getattr(server, ask)(stream=True, **body)).events)


async def test_the_bytes_of_an_answer(server, tokens):
    answer_with(server, tokens)
    body = json.dumps({"model": MODEL, "messages": USER, **predicted()}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    answer = await server.raw(head.encode() + body)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"accepted_prediction_tokens": %d, "rejected_prediction_tokens": 0' % len(tokens) in answer


async def test_the_official_client(server, tokens):
    answer_with(server, tokens)
    parts = [{"type": "text", "text": TEXT[:9]}, {"type": "text", "text": TEXT[9:]}]
    async with server.client() as client:
        for content in (TEXT, parts):
            answer = await client.chat.completions.create(model=MODEL, messages=USER, **predicted(content))
            details = answer.usage.completion_tokens_details
            assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (len(tokens), 0)
        stream = await client.chat.completions.create(
            model=MODEL, messages=USER, stream=True, stream_options={"include_usage": True}, **predicted()
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage.completion_tokens_details.accepted_prediction_tokens == len(tokens)
        legacy = await client.completions.create(model=MODEL, prompt="Once", max_tokens=4, extra_body=predicted())
        assert legacy.usage.completion_tokens_details.accepted_prediction_tokens == 4
        with pytest.raises(openai.BadRequestError, match="should be 'content'") as caught:
            await client.chat.completions.create(
                model=MODEL, messages=USER, prediction={"type": "poem", "content": TEXT}
            )
        assert caught.value.param == "prediction.type"


@ASK
async def test_token_ids(server, tokens, ask):
    answer_with(server, tokens)
    answer = await getattr(server, ask)(max_tokens=4, **predicted(tokens))
    assert server.backend.requests[0].prediction == tuple(tokens[:4])
    assert counts(answer.json["usage"]) == (4, 0)
    refused = await getattr(server, ask)(**predicted([5, 1_000_000]))
    assert (refused.status, refused.error["param"]) == (400, "prediction")
    assert "the model has no token 1000000" in refused.error["message"]


async def test_a_response_has_no_place_for_it_in_its_usage(server, tokens):
    server.backend.say(TEXT)
    async with server.client() as client:
        response = await client.responses.create(model=MODEL, input="Hello", extra_body=predicted())
    assert response.output_text == TEXT
    assert response.usage.output_tokens_details.model_dump() == {"reasoning_tokens": 0}
    assert server.backend.requests[0].prediction == tuple(tokens)


@ASK
@pytest.mark.parametrize("body", [{}, {"prediction": None}])
async def test_no_prediction(server, ask, body):
    answer = await getattr(server, ask)(**body)
    assert answer.json["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert server.backend.requests[0].prediction == ()


@pytest.mark.parametrize("content", ["", []])
async def test_an_empty_prediction(server, content):
    answer = await server.chat(**predicted(content))
    assert counts(answer.json["usage"]) == (0, 0)
    assert server.backend.requests[0].prediction == ()


# --- what the backend gets ---


async def test_what_a_person_typed_is_no_control_token(server, tokenizer):
    for control in tokenizer.control_strings:
        text = f"one {control.text} two{control.text}"
        assert (await server.chat(**predicted(text))).status == 200
        prediction = server.backend.requests[-1].prediction
        assert not tokenizer.markup.intersection(prediction)
        assert b"".join(map(tokenizer.token_bytes, prediction)).decode() == text


@ASK
async def test_what_no_answer_can_have_is_left_out(server, tokens, ask):
    answer_with(server, tokens)
    answer = await getattr(server, ask)(max_tokens=3, **predicted())
    assert server.backend.requests[0].prediction == tuple(tokens[:3])
    assert counts(answer.json["usage"]) == (3, 0)


async def test_a_prediction_over_the_context_is_cut(server):
    assert (await server.chat(**predicted("word " * 5000))).status == 200
    assert len(server.backend.requests[0].prediction) == server.backend.model.context


async def test_nothing_is_generated(server):
    answer = await server.complete(max_tokens=0, echo=True, **predicted())
    assert counts(answer.json["usage"]) == (0, 0)


# --- together with other parameters ---

TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    "more",
    [
        {"n": 2},
        {"logprobs": True, "top_logprobs": 2},
        {"tools": [TOOL]},
        {"presence_penalty": 1, "frequency_penalty": 1},
        {"max_completion_tokens": 5},
        {"response_format": {"type": "text"}, "logit_bias": {"5": -100}},
    ],
)
async def test_it_goes_with_any_parameter_and_changes_no_answer(server, more):
    server.backend.say(TEXT)
    with_it, without = [(await server.chat(**more, **body)).json for body in (predicted(), {})]
    assert with_it["choices"] == without["choices"]
    accepted, rejected = counts(with_it["usage"])
    assert accepted > 0
    assert rejected == 0


async def test_a_required_call_may_be_predicted(server, tokenizer):
    server.backend.say("{}")
    answer = await server.chat(
        tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}}, **predicted("{}")
    )
    assert answer.json["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert counts(answer.json["usage"]) == (len(tokenizer.encode_prediction("{}")), 0)


async def test_each_choice_follows_it_from_the_beginning(server, tokens):
    """The counts are sums."""
    server.backend.script = lambda request: [
        *tokens[: 4 + request.sampling.seed],
        *server.backend.model.tokenizer.eos,
    ]
    answer = (await server.chat(n=3, seed=0, **predicted())).json
    assert counts(answer["usage"]) == (4 + 5 + 6, 3 * len(tokens) - 15)
    answer = (await server.complete(["a", "b"], n=1, best_of=2, seed=0, max_tokens=100, **predicted())).json
    assert len(answer["choices"]) == 2
    assert counts(answer["usage"]) == (2 * (4 + 5), 4 * len(tokens) - 18)


async def test_all_answers_share_it(server):
    """Each of 2048 answers could have a copy of a text as long as the context."""
    server.backend.say("x")
    assert (await server.complete(["a"] * 64, n=2, **predicted())).status == 200
    assert len(server.backend.requests) == 128
    assert len({id(request.prediction) for request in server.backend.requests}) == 1


async def test_tokens_after_a_stop_string_do_not_count(server):
    server.backend.say(TEXT)
    usage = (await server.chat(stop="mat", **predicted())).json["usage"]
    accepted, rejected = counts(usage)
    assert accepted == usage["completion_tokens"]
    assert rejected > 0


# --- counting ---

some_tokens = st.lists(st.integers(0, 5), max_size=30)


@given(some_tokens, some_tokens)
def test_no_more_is_accepted_than_was_predicted(expected, answer):
    prediction = Prediction(expected)
    for token in answer:
        prediction.take(token)
    assert 0 <= prediction.accepted <= min(len(expected), len(answer))


@given(some_tokens)
def test_a_true_prediction_is_accepted_whole(tokens):
    prediction = Prediction(tokens)
    for token in tokens:
        prediction.take(token)
    assert prediction.accepted == len(tokens)
