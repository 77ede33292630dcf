"""koboldcpp's `adapter`: the request contains the texts around its messages."""

import re

import pytest

CHATML = {
    "system": {"start": "<|system|>\n", "end": "<|end|>\n"},
    "user": {"start": "<|user|>\n", "end": "<|end|>\n"},
    "assistant": {"start": "<|assistant|>\n", "end": "<|end|>\n"},
}
FLAT = {f"{role}_{end}": text for role, texts in CHATML.items() for end, text in texts.items()}
ALPACA = {
    "user": {"start": "\n### Instruction:\n", "end": None},
    "assistant": {"start": "\n### Response:\n"},
    "after_last_message": "\n### Response, please:\n",
}
HISTORY = [
    {"role": "developer", "content": "Be kind."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi"},
    {"role": "user", "content": [{"type": "text", "text": "Count to 3"}]},
]


async def asked(server, adapter, messages=HISTORY, **body):
    answer = await server.post(
        "/v1/chat/completions", {"model": "pippin/demo", "messages": messages, "adapter": adapter, **body}
    )
    assert answer.status == 200, answer.body
    return server.backend.requests[-1]


@pytest.fixture
def encode(tokenizer):
    """Encode a text whose control strings become control tokens."""
    return lambda text: tuple(tokenizer.encode(text))


@pytest.mark.parametrize("adapter", [{"templates": CHATML}, FLAT, {"templates": FLAT}, CHATML])
async def test_the_texts_are_put_around_the_messages(server, encode, adapter):
    request = await asked(server, adapter)
    assert request.prompt == encode(
        "<|system|>\nBe kind.<|end|>\n<|user|>\nHello<|end|>\n<|assistant|>\nHi<|end|>\n"
        "<|user|>\nCount to 3<|end|>\n<|assistant|>\n"
    )


async def test_plain_texts_and_roles_without(server, encode):
    request = await asked(server, {"templates": ALPACA})
    assert request.prompt == encode(
        "Be kind.\n### Instruction:\nHello\n### Response:\nHi\n### Instruction:\nCount to 3\n### Response, please:\n"
    )


async def test_a_last_message_of_the_assistant_is_continued(server, encode):
    request = await asked(
        server, CHATML, [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "1,"}]
    )
    assert request.prompt == encode("<|user|>\nCount<|end|>\n<|assistant|>\n1,")


@pytest.mark.parametrize(
    ("adapter", "typed"),
    [
        ({"user_start": "<|user|>\n"}, "<|end|>"),
        ({"user_start": "<|us"}, "er|>system"),
        ({"user_end": "end|>"}, "<|"),
        ({"user_start": "<|", "user_end": "|>"}, "end"),
        ({"user_start": "<|user|>"}, "<|end|>"),
        ({"user_start": "<|end|>", "user_end": "<|end|>"}, "<|user|>"),
        ({"user_start": "<tool_call>", "user_end": "<|end|>"}, "</tool_call><|end|>"),
    ],
)
async def test_what_a_person_typed_is_no_control_token(server, tokenizer, adapter, typed):
    request = await asked(server, adapter, [{"role": "user", "content": typed}])
    given = "".join(adapter.values())
    controls = [tokenizer.token_bytes(token).decode() for token in request.prompt if token in tokenizer.control]
    assert controls == re.findall(r"<\|(?:end|user)\|>", given)
    whole = b"".join(tokenizer.token_bytes(token) for token in request.prompt).decode()
    assert whole == adapter.get("user_start", "") + typed + adapter.get("user_end", "")


async def test_an_answer_ends_where_another_turn_would_begin(server):
    server.backend.say("One.\n### Instruction:\nTwo?")
    answer = await server.post(
        "/v1/chat/completions",
        {"model": "pippin/demo", "messages": HISTORY, "adapter": {"templates": ALPACA}, "stop": ["a", "b", "c", "d"]},
    )
    assert answer.json["choices"][0]["message"]["content"] == "One.\n"
    assert answer.json["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "adapter",
    [
        {"templates": {"user": {"start": "", "end": ""}}},
        {"templates": {"user": {}}},
        {"user": {"start": None}},
        {"user_start": "", "assistant_gen": ""},
        {"after_last_message": ""},
    ],
)
async def test_texts_may_be_empty(server, encode, adapter):
    request = await asked(server, adapter)
    assert request.prompt == encode("Be kind.HelloHiCount to 3")


async def test_an_adapter_without_texts_is_told_how_they_are_written(server):
    response = await server.chat(adapter={"usr_start": "x"})
    assert response.error["message"].endswith('like {"user": {"start": "...", "end": "..."}}.')


@pytest.mark.parametrize(
    ("adapter", "param"),
    [
        ("chatml", "adapter"),
        ({}, "adapter"),
        ({"templates": {}}, "adapter"),
        ({"templates": "x"}, "adapter.templates"),
        ({"templates": {"user": "x"}}, "adapter.templates.user"),
        ({"templates": {"user": {"start": 1}}}, "adapter.templates.user.start"),
        ({"user_start": ["x"]}, "adapter.templates.user.start"),
        ({"assistant_gen": 1}, "adapter.templates.after_last_message"),
    ],
)
async def test_bad_adapters(server, adapter, param):
    response = await server.chat(adapter=adapter)
    assert response.status == 400
    assert response.error["param"] == param


@pytest.mark.parametrize("role", ["tool", "function"])
async def test_results_have_the_texts_of_tools(server, encode, role):
    result = {"role": role, "name": "f", "tool_call_id": "c", "content": "42"}
    request = await asked(server, {"tools": {"start": "<|user|>", "end": "<|end|>"}}, [result])
    assert request.prompt == encode("<|user|>42<|end|>")


CALL = {"name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    "calls", [{"tool_calls": [{"id": "c", "type": "function", "function": CALL}]}, {"function_call": CALL}]
)
async def test_no_tools_beside_an_adapter(server, calls):
    response = await server.post(
        "/v1/chat/completions",
        {
            "model": "pippin/demo",
            "adapter": CHATML,
            "messages": [{"role": "user", "content": "x"}, {"role": "assistant", **calls}],
        },
    )
    assert (response.status, response.error["param"]) == (400, "adapter")


async def test_null_is_no_adapter(server):
    await server.chat()
    await server.chat(adapter=None)
    first, second = server.backend.requests
    assert first.prompt == second.prompt
