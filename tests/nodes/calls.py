"""Calls that a model may make, asked for and read in each dialect that promises `strict`."""

import json
from typing import Any

from tests.conftest import Node

Called = list[tuple[str, Any]]
"""Names and arguments of an answer's calls."""


def in_chat(node: Node, messages: list[Any], tool: dict[str, Any], **more: Any) -> Called:
    tools = [{"type": "function", "function": {**tool, "strict": True}}]
    asked = {"messages": messages, "tools": tools, "tool_choice": "auto", **more}
    message = node.post("/v1/chat/completions", asked).json["choices"][0]["message"]
    called = [call["function"] for call in message.get("tool_calls") or []]
    return [(call["name"], json.loads(call["arguments"])) for call in called]


def in_responses(node: Node, messages: list[Any], tool: dict[str, Any], **more: Any) -> Called:
    asked = {"input": messages, "tools": [{"type": "function", **tool, "strict": True}], "store": False, **more}
    output = node.post("/v1/responses", asked).json["output"]
    return [(each["name"], json.loads(each["arguments"])) for each in output if each["type"] == "function_call"]


def in_messages(node: Node, messages: list[Any], tool: dict[str, Any], **more: Any) -> Called:
    tools = [{"name": tool["name"], "input_schema": tool["parameters"], "strict": True}]
    content = node.post("/v1/messages", {"messages": messages, "tools": tools, "max_tokens": 600, **more}).json[
        "content"
    ]
    return [(each["name"], each["input"]) for each in content if each["type"] == "tool_use"]


DIALECTS = (in_chat, in_responses, in_messages)
