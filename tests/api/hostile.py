"""Requests that are cheap to send and may be expensive to serve: each a path and a body of at most MAX_BODY.

Most name a model that does not exist, so no long text reaches the tokenizer.
"""

import gzip
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from api.http.limits import MAX_BODY
from tests.api.fuzz import GOOD, MODEL

MOST = MAX_BODY - 4096
CHAT, LEGACY, EMBED, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"
OLLAMA, GENERATE, OLLAMA_EMBED = "/api/chat", "/api/generate", "/api/embed"
MESSAGES = "/v1/messages"


class Hostile(NamedTuple):
    name: str
    path: str
    body: Callable[[], bytes]
    encoding: str = "identity"


ITEMS = {
    "objects": b"{}",
    "lists": b"[]",
    "digits": b"0",
    "tokens": b"300",
    "fractions": b"0.5",
    "texts": b'"ab"',
    "nulls": b"null",
    "entries": b'{"a":0}',
    "long numbers": b"9" * 4000,
    "messages": b'{"role":"user","content":"x"}',
    "robots": b'{"role":"robot"}',
    "parts": b'{"type":"text","text":""}',
    "odd parts": b'{"type":{"a":[]},"text":0}',
    "tools": b'{"type":"function","function":{"name":"f"}}',
    "token lists": b"[1,2,3]",
    "mixed lists": b'[1,"x",[]]',
    "calls": b'{"type":"function_call","call_id":"c","name":"f","arguments":"[[]]"}',
}
LISTS = {
    CHAT: ("messages", "tools", "functions", "stop", "modalities", "logit_bias", "tool_choice", "adapter"),
    LEGACY: ("prompt", "stop"),
    EMBED: ("input",),
    RESPONSES: ("input", "tools", "include", "metadata"),
    OLLAMA: ("messages", "tools", "format", "images", "keep_alive"),
    GENERATE: ("prompt", "context", "options"),
    OLLAMA_EMBED: ("input",),
    MESSAGES: ("messages", "system", "tools", "stop_sequences", "mcp_servers"),
}
OBJECTS = {
    CHAT: ("logit_bias", "chat_template_kwargs", "made_up"),
    RESPONSES: ("metadata",),
    OLLAMA: ("options", "format", "made_up"),
    MESSAGES: ("metadata", "thinking"),
}
TEXTS = {
    CHAT: ("model", "stop", "tool_choice", "reasoning_effort", "function_call", "made_up"),
    LEGACY: ("model", "prompt", "stop"),
    EMBED: ("model", "input"),
    RESPONSES: ("model", "input", "instructions", "tool_choice", "user", "previous_response_id", "made_up"),
    OLLAMA: ("model", "messages", "format", "keep_alive", "think"),
    GENERATE: ("model", "prompt", "system", "template", "keep_alive"),
    OLLAMA_EMBED: ("model", "input"),
    MESSAGES: ("model", "system", "messages", "tool_choice", "made_up"),
}
SPELLINGS = {
    "letters": b"x",
    "lines": rb"\n",
    "quotes": rb"\"",
    "backslashes": rb"\\",
    "escapes": rb"\u4e2d",
    "halves": rb"\ud83d",
    "digits": b"1",
}
"""Spellings of the characters of a long text."""
DEEP = {"lists": b"[", "objects": b'{"a":'}


def hostile() -> Iterator[Hostile]:
    for path, names in LISTS.items():
        for name in names:
            for kind, item in ITEMS.items():
                yield Hostile(f"{name}: {kind}", path, _body(path, name, partial(_list, item)))
    for path, names in OBJECTS.items():
        for name in names:
            for kind, item in ITEMS.items():
                yield Hostile(f"{name}: an object of {kind}", path, _body(path, name, partial(_object, item)))
    for path, names in TEXTS.items():
        for name in names:
            for kind, char in SPELLINGS.items():
                yield Hostile(f"{name}: a text of {kind}", path, _body(path, name, partial(_text, char)))
    for kind, opening in DEEP.items():
        yield Hostile(f"deep {kind}", CHAT, _body(CHAT, "made_up", lambda opening=opening: opening * (MOST // 8)))
    for kind, data in {
        "one text": b'"' + b"x" * 30 * MOST + b'"',
        "lists": b"[" + b"[]," * (10 * MOST) + b"0]",
    }.items():
        packed = gzip.compress(json.dumps(_good(CHAT)).encode()[:-1] + b', "made_up": ' + data + b"}")
        yield Hostile(f"packed: {kind}", CHAT, partial(bytes, packed), "gzip")
    yield from _messages()
    yield from _copies()


def _messages() -> Iterator[Hostile]:
    """Bodies that grow when they become a prompt."""
    for kind, item in ITEMS.items():
        arguments = _list(item, 2000).decode()
        calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]
        messages = [{"role": "assistant", "tool_calls": calls}] * (MOST // len(json.dumps(calls)) - 100)
        yield Hostile(f"arguments: many of {kind}", CHAT, _with(CHAT, {"messages": messages}))
        content = b'[{"role":"user","content":' + _list(item) + b"}]"
        yield Hostile(f"content: {kind}", CHAT, _body(CHAT, "messages", partial(bytes, content)))
        yield Hostile(f"content of items: {kind}", RESPONSES, _body(RESPONSES, "input", partial(bytes, content)))
        yield Hostile(f"content for Ollama: {kind}", OLLAMA, _body(OLLAMA, "messages", partial(bytes, content)))
        objects = [{"function": {"name": "f", "arguments": {"a": json.loads(arguments)}}}]
        messages = [{"role": "assistant", "tool_calls": objects}] * (MOST // len(json.dumps(objects)) - 100)
        yield Hostile(f"objects as arguments: many of {kind}", OLLAMA, _with(OLLAMA, {"messages": messages}))
        yield Hostile(f"content of blocks: {kind}", MESSAGES, _body(MESSAGES, "messages", partial(bytes, content)))


def _copies() -> Iterator[Hostile]:
    """Bodies with one text of which many copies are made."""
    stops = [letter * (32 * 1024) for letter in "abcd"]
    yield Hostile("long stops", CHAT, _with(CHAT, {"model": MODEL, "stop": stops, "n": 128}))
    yield Hostile(
        "long stops of many prompts", LEGACY, _with(LEGACY, {"model": MODEL, "stop": stops, "prompt": ["x"] * 2048})
    )
    biases = {str(token): 1 for token in range(1024)}
    full = {"model": MODEL, "stop": [letter * 1024 for letter in "abcdefghijklmnop"], "logit_bias": biases}
    yield Hostile("many answers", CHAT, _with(CHAT, full | {"n": 128}))
    yield Hostile("many prompts", LEGACY, _with(LEGACY, full | {"prompt": [[300]] * 2048}))
    yield Hostile("many texts", EMBED, _with(EMBED, {"model": MODEL, "input": [[300]] * 2048}))
    names = [{"type": "function", "name": "f"}] * 100_000
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": names}}
    tools = [{"type": "function", "function": {"name": f"f{index}"}} for index in range(128)]
    yield Hostile("allowed tools", CHAT, _with(CHAT, {"tools": tools, "tool_choice": choice}))
    texts = {"user_start": "x" * 500_000, "assistant_end": "y" * 500_000}
    many = [{"role": "user", "content": ""}] * 4000
    yield Hostile("adapter", CHAT, _with(CHAT, {"adapter": texts, "messages": many}))


def _good(path: str) -> dict[str, Any]:
    return {"model": "nobody's", **GOOD[path], **({"max_tokens": 1} if path in (CHAT, LEGACY) else {})}


def _with(path: str, parameters: dict[str, Any]) -> Callable[[], bytes]:
    return lambda: json.dumps(_good(path) | parameters).encode()


def _body(path: str, name: str, value: Callable[[], bytes]) -> Callable[[], bytes]:
    rest = {key: item for key, item in _good(path).items() if key != name}
    return lambda: json.dumps(rest).encode()[:-1] + f', "{name}": '.encode() + value() + b"}"


def _list(item: bytes, size: int = MOST) -> bytes:
    return b"[" + (item + b",") * (size // (len(item) + 1) - 1) + item + b"]"


def _object(item: bytes, size: int = MOST) -> bytes:
    return b"{" + b",".join(b'"%06d":%s' % (index, item) for index in range(size // (len(item) + 10))) + b"}"


def _text(char: bytes, size: int = MOST) -> bytes:
    return b'"' + char * (size // len(char)) + b'"'
