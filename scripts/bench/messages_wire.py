"""A chat over Anthropic's Messages API: the request that says the same as one of OpenAI's, and the times of its answer."""

import json
import time
from collections.abc import Sequence

import aiohttp
from sse import Answer, Json, RefusedError


def body(model: str, messages: Sequence[Json], tools: Sequence[Json], max_tokens: int) -> Json:
    functions = [tool["function"] for tool in tools]
    return {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "system": "\n\n".join(message["content"] for message in messages if message["role"] == "system"),
        "messages": [_message(message) for message in messages if message["role"] != "system"],
        "tools": [
            {"name": each["name"], "description": each["description"], "input_schema": each["parameters"]}
            for each in functions
        ],
    }


def _message(message: Json) -> Json:
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
        return {"role": "user", "content": [result]}
    blocks: list[Json] = [{"type": "text", "text": message["content"]}] if message["content"].strip() else []
    for call in message.get("tool_calls", ()):
        about = {"id": call["id"], "name": call["function"]["name"]}
        blocks.append({"type": "tool_use", **about, "input": json.loads(call["function"]["arguments"])})
    return {"role": message["role"], "content": blocks}


async def stream(http: aiohttp.ClientSession, url: str, asked: Json) -> Answer:
    """Send a request and read its answer to the end; of its times, only the first and the last are known. Raises RefusedError."""
    answer, rest = Answer(sent=time.perf_counter()), b""
    async with http.post(url, json=asked, headers={"anthropic-version": "2023-06-01"}) as response:
        if response.status != 200:
            raise RefusedError(response.status, await response.text())
        async for lump in response.content.iter_any():
            *events, rest = (rest + lump).split(b"\n\n")
            for event in events:
                _take(answer, event)
    return answer


def _take(answer: Answer, event: bytes) -> None:
    _, _, data = event.partition(b"data: ")
    if not data:
        return  # a comment
    told = json.loads(data)
    match told["type"]:
        case "message_start":
            usage = told["message"]["usage"]
            answer.cached_tokens = usage["cache_read_input_tokens"]
            answer.prompt_tokens = usage["input_tokens"] + answer.cached_tokens
        case "content_block_delta":
            answer.texts.append(time.perf_counter())
        case "message_stop":
            answer.ended = time.perf_counter()
        case "error":
            raise RuntimeError(f"The stream ended with an error: {told['error']}")
