"""Calls that `max_tokens` cuts anywhere, demanded or not: a part of a call, in each API, and never text."""

import json

import pytest
from anthropic.types import Message
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from tests.api import test_anthropic, test_responses
from tests.api.test_ollama import lines
from tests.api.test_tools import NAMED, NOW, WEATHER, call, joined, without_ids
from tests.strict import strictly
from tests.strict_anthropic import strictly as strictly_anthropic

ARGUMENTS = '{"city": "Rome and then some"}'
FREE = f"<tool_call>\n{call('weather', ARGUMENTS)}\n</tool_call>"
CUT = [
    pytest.param([WEATHER, NOW], "required", call("weather", ARGUMENTS), id="required"),
    pytest.param([WEATHER], "required", call("weather", ARGUMENTS), id="required of one"),
    pytest.param([WEATHER, NOW], NAMED, ARGUMENTS, id="named"),
    pytest.param([WEATHER, NOW], "auto", FREE, id="auto"),
]
EVERYWHERE = pytest.mark.parametrize(("tools", "choice", "text"), CUT)


def lengths(server, text):
    """Each limit that cuts the text, and what is written up to there."""
    tokens = server.backend.model.tokenizer.encode(text)
    return [(most, server.backend.model.tokenizer.decode(tokens[:most])) for most in range(1, len(tokens) - 1)]


def begun(text, written, tools):
    """The name and arguments of the call that `written` has begun; None: more than one may follow."""
    head, arguments, _ = text.partition(ARGUMENTS)
    sure = 'weather"' if text == FREE else '"w'
    known = not head or (len(tools) == 1 and text != FREE) or sure in written
    return {"name": "weather", "arguments": (arguments and written[len(head) :])[: len(ARGUMENTS)]} if known else None


@EVERYWHERE
async def test_a_chat(server, tools, choice, text):
    server.backend.say(text)
    for most, written in lengths(server, text):
        expected = [each] if (each := begun(text, written, tools)) else []
        asked = {"tools": tools, "tool_choice": choice, "max_tokens": most}
        plain = (await server.chat(**asked)).json
        strictly(ChatCompletion, plain)
        (made,) = plain["choices"]
        assert made["finish_reason"] == "length"
        assert not made["message"]["content"]
        assert without_ids(made["message"].get("tool_calls") or []) == expected, written
        chunks = (await server.chat(**asked, stream=True)).events
        assert without_ids(joined(chunks)) == expected
        assert not any(chunk["choices"][0]["delta"].get("content") for chunk in chunks)
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"


@EVERYWHERE
async def test_a_response(server, tools, choice, text):
    server.backend.say(text)
    flat = [{"type": "function", "strict": False, **tool["function"]} for tool in tools]
    named = {"type": "function", "name": "weather"} if choice is NAMED else choice
    for most, written in lengths(server, text):
        expected = begun(text, written, tools)
        asked = {"tools": flat, "tool_choice": named, "max_output_tokens": most}
        plain = (await test_responses.ask(server, **asked)).json
        strictly(Response, plain)
        streamed = test_responses.events_of(await test_responses.ask(server, **asked, stream=True))[-1]
        assert streamed["type"] == "response.incomplete"
        for response in (plain, streamed["response"]):
            assert (response["status"], response["incomplete_details"]) == (
                "incomplete",
                {"reason": "max_output_tokens"},
            )
            (item,) = response["output"]
            if expected:
                status = "completed" if expected["arguments"] == ARGUMENTS else "incomplete"
                assert (item["type"], item["status"]) == ("function_call", status)
                assert {"name": item["name"], "arguments": item["arguments"]} == expected
            else:
                assert item["content"][0]["text"] == ""


@EVERYWHERE
async def test_a_message(server, tools, choice, text):
    server.backend.say(text)
    own = [{"name": tool["function"]["name"], "input_schema": {"type": "object"}} for tool in tools]
    named = {"type": "tool", "name": "weather"} if choice is NAMED else {"type": choice.replace("required", "any")}
    for most, written in lengths(server, text):
        expected = begun(text, written, tools)
        asked = {"tools": own, "tool_choice": named, "max_tokens": most}
        plain = strictly_anthropic(Message, (await test_anthropic.ask(server, **asked)).json)
        assert plain.stop_reason == "max_tokens"
        assert [(block.type, block.name) for block in plain.content] == ([("tool_use", "weather")] if expected else [])
        async with (
            test_anthropic.client(server) as official,
            official.messages.stream(**{**test_anthropic.body(), **asked}) as stream,
        ):
            pieces = [event.partial_json async for event in stream if event.type == "input_json"]
            final = await stream.get_final_message()
        assert final.stop_reason == "max_tokens"
        assert [block.type for block in final.content] == [block.type for block in plain.content]
        assert "".join(pieces) == (expected["arguments"] if expected else "")


async def test_an_answer_in_ollamas_dialect_which_has_no_place_for_a_part(server):
    server.backend.say(FREE)
    for most, written in lengths(server, FREE):
        asked = {"tools": [WEATHER, NOW], "options": {"num_predict": most}}
        expected = [{"city": "Rome and then some"}] if ARGUMENTS in written else []
        plain = (await server.ask_ollama(**asked)).json
        *parts, last = lines(await server.ask_ollama(**asked, stream=True))
        for end, said in ((plain, [plain]), (last, parts)):
            assert end["done_reason"] == "length"
            assert "".join(each["message"]["content"] for each in said) == ""
            made = [made for each in said for made in each["message"].get("tool_calls", [])]
            assert [each["function"]["arguments"] for each in made] == expected


@EVERYWHERE
async def test_a_token_that_stops_an_answer_within_a_call_is_told_as_a_limit(server, tools, choice, text):
    tokenizer = server.backend.model.tokenizer
    tokens = tokenizer.encode(text)
    server.backend.say(text)
    ends = {token: tokens.index(token) + 1 for token in tokens}
    own = [{"name": tool["function"]["name"], "input_schema": {"type": "object"}} for tool in tools]
    flat = [{"type": "function", "strict": False, **tool["function"]} for tool in tools]
    any_tool = {"type": "auto" if choice == "auto" else "any"}
    for token, size in ends.items():
        written = tokenizer.decode(tokens[:size])
        asked = {"tools": tools, "tool_choice": choice, "stop_token_ids": [token]}
        plain = (await server.chat(**asked)).json["choices"][0]
        streamed = (await server.chat(**asked, stream=True)).events
        expected = [each] if (each := begun(text, written, tools)) else []
        is_whole = bool(expected) and expected[0]["arguments"] == ARGUMENTS
        assert not plain["message"]["content"]
        assert without_ids(plain["message"].get("tool_calls") or []) == without_ids(joined(streamed)) == expected
        for reason in (plain["finish_reason"], streamed[-1]["choices"][0]["finish_reason"]):
            assert reason == "tool_calls" if is_whole else reason == "length", written
        if choice is not NAMED:
            asked = {"tools": flat, "tool_choice": choice, "stop_token_ids": [token]}
            response = (await test_responses.ask(server, **asked)).json
            assert response["status"] == ("completed" if is_whole else "incomplete")
            asked = {"tools": own, "tool_choice": any_tool, "stop_token_ids": [token]}
            message = (await test_anthropic.ask(server, **asked)).json
            assert message["stop_reason"] == ("tool_use" if is_whole else "max_tokens")


async def test_a_stop_string_within_a_call_cuts_nothing(server):
    """It is of the text alone, in each API."""
    server.backend.say(f"I see. {FREE}")
    expected = json.loads(ARGUMENTS)
    tools, (own,) = [WEATHER, NOW], [WEATHER["function"]]
    (chat,) = (await server.chat(tools=tools, stop="Rome")).json["choices"]
    assert chat["finish_reason"] == "tool_calls"
    assert json.loads(chat["message"]["tool_calls"][0]["function"]["arguments"]) == expected
    response = await test_responses.ask(server, tools=[{"type": "function", **own}], stop=["Rome"])
    assert json.loads(response.json["output"][-1]["arguments"]) == expected
    block = {"name": own["name"], "input_schema": {"type": "object"}}
    message = (await test_anthropic.ask(server, tools=[block], stop_sequences=["Rome"])).json
    assert (message["stop_reason"], message["content"][-1]["input"]) == ("tool_use", expected)
    asked = {"tools": tools, "options": {"stop": ["Rome"]}}
    plain = (await server.ask_ollama(**asked)).json
    for said in ([plain], lines(await server.ask_ollama(**asked, stream=True))):
        (made,) = [made for each in said for made in each["message"].get("tool_calls", [])]
        assert (said[-1]["done_reason"], made["function"]["arguments"]) == ("stop", expected)


async def test_what_is_cut_is_text_where_text_may_come(server):
    """With a format beside the tools, an answer that has only begun may be either."""
    server.backend.say(call("weather", ARGUMENTS))
    form = {"type": "json_schema", "json_schema": {"name": "any", "schema": {"type": "object"}}}
    (made,) = (await server.chat(tools=[WEATHER], response_format=form, max_tokens=3)).json["choices"]
    assert made["finish_reason"] == "length"
    assert call("weather", ARGUMENTS).startswith(made["message"]["content"])
