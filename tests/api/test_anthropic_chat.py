"""What a chat is asked for a request to Anthropic's Messages API, and what becomes of its thoughts and calls."""

import json
import sys
from pathlib import Path

import pytest
from anthropic.types import Message

from node.text.grammar import call_head
from tests.api.families import FAMILIES, HARMONY, make
from tests.api.test_anthropic import CITY, HEADERS, MODEL, NOW, USER, WEATHER, ask, body, client, events_of
from tests.strict_anthropic import strictly

DATA = Path(__file__).parents[1] / "data"


async def as_chat(server, messages, **more):
    """Send a chat request, for comparison."""
    asked = {"model": MODEL, "max_tokens": 100, "messages": messages, **more}
    answer = await server.post("/v1/chat/completions", asked)
    assert answer.status == 200, answer.body
    return answer.json


async def prompts(server, messages, chat, **more):
    """The prompts of a request to /v1/messages and of a chat."""
    answer = await ask(server, messages, **more)
    assert answer.status == 200, answer.body
    await as_chat(server, chat)
    one, other = server.backend.requests[-2:]
    return one.prompt, other.prompt


def call(name, arguments):
    return f"{call_head(name)}{json.dumps(arguments)}}}"


# --- what a chat is asked ---


async def test_it_is_asked_as_a_chat(server):
    await ask(
        server, system="Be kind.", temperature=0.5, top_p=0.9, top_k=3, seed=7, cache_control={"type": "ephemeral"}
    )
    system = {"role": "system", "content": "Be kind."}
    await as_chat(server, [system, *USER], temperature=0.5, top_p=0.9, top_k=3, seed=7)
    one, other = server.backend.requests
    assert (one.prompt, one.sampling, one.max_tokens) == (other.prompt, other.sampling, other.max_tokens)


TEXT = {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}
CALL = {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}


ASSISTANT = [{"role": "assistant", "content": "Yes?"}]
REMINDER = "<system-reminder>\nHello\n</system-reminder>"


def result(content, **more):
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **more}


def told(content):
    return {"role": "tool", "tool_call_id": "toolu_1", "content": content}


@pytest.mark.parametrize(
    ("messages", "chat"),
    [
        ([{"role": "user", "content": [TEXT]}], USER),
        (
            [{"role": "user", "content": [TEXT, {"type": "text", "text": ""}, TEXT]}],
            [{"role": "user", "content": "Hello\nHello"}],
        ),
        ([*USER, *USER], [{"role": "user", "content": "Hello\nHello"}]),
        ([{"role": "system", "content": "Be kind."}, *USER], [{"role": "system", "content": "Be kind."}, *USER]),
        (
            [*USER, {"role": "system", "content": [TEXT]}, {"role": "system", "content": []}, *ASSISTANT, *USER],
            [{"role": "user", "content": f"Hello\n{REMINDER}"}, *ASSISTANT, *USER],
        ),
        ([*USER, {"role": "assistant", "content": "1, 2,"}], [*USER, {"role": "assistant", "content": "1, 2,"}]),
        (
            [*USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}]}, *USER],
            [{"role": "user", "content": "Hello\nHello"}],
        ),
        (
            [*USER, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, TEXT]}, *USER],
            [*USER, {"role": "assistant", "content": "Hello"}, *USER],
        ),
        (
            [
                *USER,
                {"role": "assistant", "content": [TEXT, USE]},
                {"role": "user", "content": [TEXT, result([TEXT, TEXT])]},
                {
                    "role": "user",
                    "content": [result("No.", is_error=True), result("Error 5", is_error=True), result([])],
                },
            ],
            [
                *USER,
                {"role": "assistant", "content": "Hello", "tool_calls": [CALL]},
                *(told(text) for text in ("Hello\nHello", "Error: No.", "Error 5", "")),
                {"role": "user", "content": "Hello"},
            ],
        ),
    ],
)
async def test_blocks_become_messages(server, messages, chat):
    one, other = await prompts(server, messages, chat)
    assert one == other


async def test_a_first_message_of_the_system_is_part_of_the_system_prompt(server):
    system = {"role": "system", "content": "Be brief."}
    one, other = await prompts(
        server, [system, *USER], [{"role": "system", "content": "Be kind.\nBe brief."}, *USER], system="Be kind."
    )
    assert one == other


@pytest.mark.parametrize(
    "system",
    [
        "x-anthropic-billing-header: a=1;\nBe kind.",
        [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.1; cch=4f2a1;"},
            {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}},
        ],
    ],
)
async def test_what_is_for_anthropics_accounting_is_left_out(server, system):
    one, other = await prompts(server, USER, [{"role": "system", "content": "Be kind."}, *USER], system=system)
    assert one == other


@pytest.mark.parametrize(
    ("more", "variables"),
    [
        ({}, {"enable_thinking": False}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}, {"enable_thinking": True}),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
            {"enable_thinking": True, "reasoning_effort": "low"},
        ),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        (
            {"thinking": {"type": "adaptive"}, "tools": [WEATHER], "tool_choice": {"type": "any"}},
            {"enable_thinking": False},
        ),
        (
            {"thinking": {"type": "adaptive"}, "output_format": {"type": "json_schema", "schema": CITY}},
            {"enable_thinking": False},
        ),
        ({"chat_template_kwargs": {"enable_thinking": True, "a": 1}}, {"enable_thinking": True, "a": 1}),
    ],
)
async def test_thinking_is_a_variable_of_the_template(server, more, variables, monkeypatch):
    given = []
    model = server.backend.model

    async def encode_chat(messages, tools, kwargs, *, context):
        given.append(kwargs)
        return [1, 2, 3]

    monkeypatch.setattr(type(model), "encode_chat", staticmethod(encode_chat))
    server.backend.say("{}")
    assert (await ask(server, **more)).status == 200
    assert given == [variables]


# --- thoughts and tools ---


@pytest.mark.parametrize("name", ["qwen", "gpt-oss"])
async def test_thoughts_are_blocks(server, backend, tmp_path, name):
    family = HARMONY if name == "gpt-oss" else FAMILIES[name]
    backend.model.tokenizer = make(family, tmp_path)
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    backend.say(thought if name == "gpt-oss" else "<think>\nHm.\n</think>\n\nYes.")
    answer = await ask(server)
    thoughts, text = answer.json["content"]
    assert thoughts.items() >= {"type": "thinking", "thinking": "Hm."}.items()
    assert thoughts["signature"]
    assert text == {"type": "text", "text": "Yes."}
    assert answer.json["usage"]["output_tokens_details"]["thinking_tokens"] > 0
    async with client(server) as official, official.messages.stream(**body()) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert [block.model_dump(exclude_none=True) for block in final.content] == answer.json["content"]
    assert kinds.index("signature") < kinds.index("text")
    hidden = {"type": "adaptive", "display": "omitted"}
    assert (await ask(server, thinking=hidden)).json["content"] == [{**thoughts, "thinking": ""}, text]
    again = [*USER, {"role": "assistant", "content": answer.json["content"]}, *USER]
    assert (await ask(server, again)).status == 200


@pytest.mark.parametrize(
    ("choice", "text", "inputs"),
    [
        ({"type": "any"}, [("weather", {"city": "Röm"}), ("now", {})], None),
        ({"type": "tool", "name": "weather"}, [("weather", {"city": "Röm"})], None),
        ({"type": "auto"}, [("weather", {"city": "Röm"}), ("now", {})], "Look:"),
        (None, [("now", {})], None),
        ({"type": "auto", "disable_parallel_tool_use": True}, [("now", {})], None),
    ],
)
async def test_calls_plain_and_streamed(server, choice, text, inputs):
    calls = [call(*each) for each in text]
    if choice and choice["type"] == "tool":
        said = json.dumps(text[0][1])
    elif choice and choice["type"] == "any":
        said = "\n".join(calls)
    else:
        said = (inputs or "") + "".join(f"<tool_call>{each}</tool_call>" for each in calls)
    server.backend.say(said)
    asked = {"tools": [WEATHER, NOW], **({"tool_choice": choice} if choice else {})}
    message = strictly(Message, (await ask(server, **asked)).json)
    uses = [block for block in message.content if block.type == "tool_use"]
    assert [(use.name, use.input) for use in uses] == text
    assert all(use.id.startswith("toolu_") for use in uses)
    assert len({use.id for use in uses}) == len(uses)
    assert (message.stop_reason, message.content[0].type) == ("tool_use", "text" if inputs else "tool_use")
    async with client(server) as official, official.messages.stream(**body(), **asked) as stream:
        snapshots = [event.snapshot async for event in stream if event.type == "input_json"]
        final = await stream.get_final_message()
    assert [(block.name, block.input) for block in final.content if block.type == "tool_use"] == text
    assert snapshots[-1] == text[-1][1]
    assert final.stop_reason == "tool_use"


async def test_a_text_is_before_the_call_that_follows_it(server):
    """Also where its end may begin a stop sequence."""
    server.backend.say(f"Let me look.\n\n<tool_call>{call('now', {})}</tool_call>")
    asked = {"tools": [NOW], "stop_sequences": ["\n\nHuman:"]}
    text, use = (await ask(server, **asked)).json["content"]
    assert (text, use["type"]) == ({"type": "text", "text": "Let me look.\n\n"}, "tool_use")
    async with client(server) as official, official.messages.stream(**body(), **asked) as stream:
        final = await stream.get_final_message()
    assert [block.type for block in final.content] == ["text", "tool_use"]
    assert final.content[0].text == "Let me look.\n\n"


async def test_no_choice_is_no_call(server):
    said = f"<tool_call>{call('now', {})}</tool_call>"
    server.backend.say(said)
    answer = await ask(server, tools=[NOW], tool_choice={"type": "none"})
    assert answer.json["content"] == [{"type": "text", "text": said}]


async def test_arguments_that_are_cut(server):
    server.backend.say('{"city": "Rome and then some"}')
    asked = {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "weather"}, "max_tokens": 4}
    answer = await ask(server, **asked)
    assert (answer.json["stop_reason"], answer.json["content"][0]["name"]) == ("max_tokens", "weather")
    events = events_of(await ask(server, **asked, stream=True))
    assert [event["type"] for event in events][-2:] == ["message_delta", "message_stop"]


async def test_a_format_is_a_grammar(server):
    server.backend.say('{"city": "Rome"}')
    given = {"type": "json_schema", "schema": CITY}
    for more in ({"output_config": {"format": given}}, {"output_format": given}):
        answer = await ask(server, **more)
        assert json.loads(answer.json["content"][0]["text"]) == {"city": "Rome"}
    assert all(request.grammar for request in server.backend.requests)


# --- Claude Code ---


async def test_claude_code_reuses_the_prompt_of_its_previous_request(server):
    """The data is a request of Claude Code 2.1.197, with its texts shortened; the two messages before its last are new."""
    server.backend.model.context = 16_384
    whole = json.loads((DATA / "claude_code.json").read_text())
    accounting = {
        "type": "text",
        "text": "x-anthropic-billing-header: cc_version=2.1.197.fa0; cc_entrypoint=cli; cch=1f;",
    }
    first = {**whole, "messages": whole["messages"][:-2], "system": [accounting, *whole["system"][1:]]}
    for asked in (first, whole):
        answer = await server.post("/v1/messages?beta=true", asked, headers=HEADERS)
        assert events_of(answer)[-1] == {"type": "message_stop"}
    before, after = (request.prompt for request in server.backend.requests)
    assert after[: len(before)] == before
    assert "<system-reminder>\nAvailable agent types" in server.backend.model.tokenizer.decode(before)


async def test_claude_codes_tools_have_grammars(server):
    server.backend.model.context = 16_384
    server.backend.say(call("Bash", {"command": "ls"}))
    whole = json.loads((DATA / "claude_code.json").read_text())
    answer = await server.post(
        "/v1/messages", {**whole, "stream": False, "tool_choice": {"type": "any"}}, headers=HEADERS
    )
    assert (answer.json["content"][0]["name"], answer.json["content"][0]["input"]) == ("Bash", {"command": "ls"})


DEEP = f'{{"a": {"[" * 250}{"]" * 250}}}'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("demanded", [False, True])
@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"a": "x\\ud800"}', {"a": "x\ufffd"}),
        ('{"a": 1e999, "b": 1.5}', {"a": sys.float_info.max, "b": 1.5}),
        (DEEP, {}),
    ],
)
async def test_arguments_that_few_parsers_take_do_no_harm(server, stream, demanded, written, read):
    choice = {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}} if demanded else {}
    server.backend.say(written if demanded else f'<tool_call>\n{{"name": "now", "arguments": {written}}}\n</tool_call>')
    answer = await ask(server, tools=[NOW], stream=stream, max_tokens=1500, **choice)
    if stream:
        assert events_of(answer)[-2]["delta"]["stop_reason"] == ("tool_use")
    else:
        (block,) = answer.json["content"]
        assert (block["name"], block["input"], answer.json["stop_reason"]) == ("now", read, "tool_use")
