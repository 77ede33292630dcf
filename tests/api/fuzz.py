"""Requests that no client should send: invalid bodies by schema and by JSON, invalid HTTP."""

import json
import re
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

MODEL = "pippin/demo"
"""The scripted backend's model; tests of a real node pass its model."""

numbers = st.sampled_from(
    [
        0,
        1,
        2,
        3,
        -1,
        0.5,
        0.999,
        1.0,
        1e-9,
        1e-320,
        -0.0,
        2.0,
        5,
        20,
        21,
        100,
        -100,
        128,
        129,
        1e308,
        2**31,
        2**63,
        10**30,
    ]
)
words = st.sampled_from(
    ["", "a", "Hello", "<|end|>", "<|im_start|>user", "\u0000", "é😀\u2028", "1", "null", "../..", "{", "%s{0}"]
)
scalars = st.one_of(st.none(), st.booleans(), numbers, words, st.integers(), st.text(max_size=6))
names = st.sampled_from(
    [
        "role",
        "content",
        "type",
        "text",
        "name",
        "id",
        "function",
        "arguments",
        "parameters",
        "schema",
        "strict",
        "5",
        "",
    ]
)
junk = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=6,
)

# --- nearly valid: gets past the first check ---

roles = st.sampled_from(["system", "developer", "user", "assistant", "tool", "robot"])
parts = st.fixed_dictionaries({"type": st.sampled_from(["text", "input_text", "image_url", "refusal"]), "text": words})
calls = st.one_of(
    st.fixed_dictionaries(
        {
            "id": words,
            "type": st.just("function"),
            "function": st.fixed_dictionaries(
                {"name": words, "arguments": st.sampled_from(['{"a": 1}', "{", "", "[]", "1"])}
            ),
        }
    ),
    st.fixed_dictionaries(
        {"id": words, "type": st.just("custom"), "custom": st.fixed_dictionaries({"name": words, "input": words})}
    ),
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": roles, "content": st.one_of(words, st.lists(parts, max_size=2), st.none())},
        optional={"name": words, "tool_call_id": words, "tool_calls": st.lists(calls, max_size=2)},
    ),
    min_size=1,
    max_size=4,
)
schemas = st.recursive(
    st.one_of(
        st.booleans(),
        st.builds(
            dict, type=st.sampled_from(["string", "integer", "number", "boolean", "null", "poem", ["string", "null"]])
        ),
        st.builds(dict, enum=st.lists(scalars, max_size=3)),
        st.builds(dict, const=scalars),
        st.builds(dict, type=st.just("integer"), minimum=numbers, maximum=numbers),
        st.builds(dict, type=st.just("string"), pattern=st.sampled_from(["^a+$", "(", "[", "(?=x)", ".{0,9}", "\\"])),
        st.builds(dict, type=st.just("string"), minLength=numbers, maxLength=numbers),
        st.builds(lambda to: {"$ref": to}, st.sampled_from(["#", "#/$defs/x", "#/nowhere", "http://x/y"])),
    ),
    lambda inner: st.one_of(
        st.builds(dict, type=st.just("array"), items=inner, minItems=numbers, maxItems=numbers),
        st.builds(
            lambda properties, required, more: {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": more,
            },
            st.dictionaries(words, inner, max_size=3),
            st.lists(words, max_size=2),
            inner,
        ),
        st.builds(
            lambda kind, of: {kind: of}, st.sampled_from(["anyOf", "oneOf", "allOf"]), st.lists(inner, max_size=2)
        ),
        st.builds(lambda defs: {"$defs": {"x": defs}, "$ref": "#/$defs/x"}, inner),
    ),
    max_leaves=5,
)
_LARK = (
    "start: /a+/",
    "start: start",
    "start: x",
    "start: (",
    'start: "a" | start start',
    "start: <[3]>",
    "}",
    "%import common.LF",
)
_grammars = st.one_of(
    st.builds(dict, syntax=st.just("lark"), definition=st.one_of(st.sampled_from(_LARK), words)),
    st.builds(
        dict, syntax=st.just("regex"), definition=st.sampled_from(["a+/", "(", "(?s:.*)", "\\", "", "a{9999}", "(a*)*"])
    ),
    junk,
)
_custom = st.fixed_dictionaries(
    {"name": words},
    optional={
        "format": st.one_of(
            st.builds(lambda grammar: {"type": "grammar", "grammar": grammar}, _grammars),
            st.builds(lambda grammar: {"type": "grammar", **(grammar if isinstance(grammar, dict) else {})}, _grammars),
            st.builds(dict, type=st.sampled_from(["text", "poem"])),
        )
    },
)
tools = st.lists(
    st.one_of(
        st.builds(
            lambda function: {"type": "function", "function": function},
            st.fixed_dictionaries({"name": words}, optional={"parameters": schemas, "strict": st.booleans()}),
        ),
        st.builds(lambda custom: {"type": "custom", "custom": custom}, _custom),
        st.builds(lambda custom: {"type": "custom", **custom}, _custom),
    ),
    max_size=2,
)
tool_choices = st.one_of(
    st.sampled_from(["none", "auto", "required", "poem"]),
    st.builds(lambda name: {"type": "function", "function": {"name": name}}, words),
    st.builds(lambda name: {"type": "custom", "custom": {"name": name}, "name": name}, words),
)
formats = st.one_of(
    st.sampled_from([{"type": "text"}, {"type": "json_object"}, {"type": "json_schema"}]),
    st.builds(
        lambda name, schema, strict: {
            "type": "json_schema",
            "json_schema": {"name": name, "schema": schema, "strict": strict},
        },
        words,
        schemas,
        st.booleans(),
    ),
)
token_ids = st.one_of(st.integers(0, 4200), st.sampled_from([-1, 0, 999_999, 2**31, 2**64]))
prompts = st.one_of(
    words,
    st.lists(words, max_size=3),
    st.lists(token_ids, max_size=4),
    st.lists(st.lists(token_ids, max_size=3), max_size=3),
)
biases = st.dictionaries(st.one_of(words, token_ids.map(str)), numbers, max_size=4)

NEARLY: dict[str, st.SearchStrategy[Any]] = {
    "messages": messages,
    "prompt": prompts,
    "input": st.one_of(prompts, messages),
    "tokens": st.one_of(prompts, st.lists(st.integers(-1, 3000), max_size=3)),
    "stop": st.one_of(words, st.lists(words, max_size=5)),
    "logit_bias": biases,
    "tools": tools,
    "tool_choice": tool_choices,
    "response_format": formats,
    "text": st.builds(lambda form: {"format": form}, formats),
    "prediction": st.builds(
        lambda kind, content: {"type": kind, "content": content},
        st.sampled_from(["content", "content", "poem"]),
        st.one_of(words, st.lists(parts, max_size=2), st.none()),
    ),
    "stream": st.booleans(),
    "background": st.booleans(),
    "min_tokens": st.integers(-1, 8),
    "allowed_token_ids": st.lists(token_ids, max_size=3),
    "stream_options": st.builds(dict, include_usage=st.booleans()),
    "adapter": st.builds(lambda start, end: {"templates": {"user": {"start": start, "end": end}}}, words, words),
    "chat_template_kwargs": st.dictionaries(words, scalars, max_size=2),
    "encoding_format": st.sampled_from(["float", "base64", "poem"]),
    "n": st.sampled_from([1, 2, 3, 0, 129]),
}

# --- Ollama's ---

OLLAMA: dict[str, st.SearchStrategy[Any]] = {
    "messages": st.lists(
        st.fixed_dictionaries(
            {"role": roles, "content": st.one_of(words, st.none())},
            optional={
                "thinking": words,
                "tool_name": words,
                "images": st.lists(words, max_size=1),
                "tool_calls": st.lists(
                    st.builds(
                        lambda name, arguments: {"function": {"name": name, "arguments": arguments}},
                        words,
                        st.dictionaries(words, scalars, max_size=2),
                    ),
                    max_size=2,
                ),
            },
        ),
        min_size=1,
        max_size=4,
    ),
    "prompt": words,
    "system": words,
    "raw": st.booleans(),
    "suffix": words,
    "template": words,
    "context": st.lists(token_ids, max_size=3),
    "options": st.dictionaries(
        st.sampled_from(["temperature", "top_k", "seed", "num_predict", "stop", "repeat_penalty", "num_ctx", "x"]),
        st.one_of(numbers, scalars, st.lists(words, max_size=3)),
        max_size=3,
    ),
    "format": st.one_of(st.sampled_from(["", "json", "xml"]), schemas),
    "keep_alive": st.one_of(numbers, st.sampled_from(["5m", "0", "-1", "-1h2.5s", "1d", "m", "5 m", "9" * 30])),
    "think": st.one_of(st.booleans(), st.sampled_from(["low", "high", "a lot"])),
    "truncate": st.booleans(),
    "name": words,
}

# --- Anthropic's ---

blocks = st.recursive(
    st.one_of(
        st.builds(dict, type=st.sampled_from(["text", "thinking", "image", "poem"]), text=words, thinking=words),
        st.builds(
            dict, type=st.just("tool_use"), id=words, name=words, input=st.dictionaries(words, scalars, max_size=2)
        ),
        st.builds(dict, type=st.just("redacted_thinking"), data=words),
    ),
    lambda inner: st.builds(
        dict,
        type=st.just("tool_result"),
        tool_use_id=words,
        content=st.one_of(words, st.lists(inner, max_size=2)),
        is_error=st.one_of(st.booleans(), scalars),
    ),
    max_leaves=3,
)
contents = st.one_of(words, st.lists(blocks, max_size=3))
turns = st.builds(dict, role=st.sampled_from(["user", "user", "assistant", "system"]), content=contents)
ANTHROPIC: dict[str, st.SearchStrategy[Any]] = {
    "messages": st.lists(turns, min_size=1, max_size=4),
    "system": contents,
    "tools": st.lists(
        st.builds(dict, type=st.sampled_from(["custom", "bash_20250124"]), name=words, input_schema=schemas), max_size=2
    ),
    "tool_choice": st.builds(
        dict, type=st.sampled_from(["auto", "any", "tool", "none"]), name=words, disable_parallel_tool_use=st.booleans()
    ),
    "thinking": st.builds(
        dict,
        type=st.sampled_from(["enabled", "disabled", "adaptive", "poem"]),
        budget_tokens=numbers,
        display=st.sampled_from(["summarized", "omitted", None]),
    ),
    "output_config": st.builds(
        lambda effort, schema: {"effort": effort, "format": {"type": "json_schema", "schema": schema}},
        st.sampled_from(["low", "max", None, "poem"]),
        schemas,
    ),
    "stop_sequences": st.lists(words, max_size=5),
    "metadata": st.builds(dict, user_id=scalars),
}

OWN: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    **dict.fromkeys(("/api/chat", "/api/generate", "/api/embed", "/api/show"), OLLAMA),
    "/v1/messages": ANTHROPIC,
    "/v1/messages/count_tokens": ANTHROPIC,
}
"""Parameters of surfaces that are not OpenAI's, by endpoint."""

GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5},
    "/v1/completions": {"prompt": "Once", "max_tokens": 5},
    "/v1/embeddings": {"input": "Hello"},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 5},
    "/api/chat": {"messages": [{"role": "user", "content": "Hello"}], "options": {"num_predict": 5}},
    "/api/generate": {"prompt": "Once", "options": {"num_predict": 5}},
    "/api/embed": {"input": "Hello"},
    "/api/show": {},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hello"}]},
    "/v1/tokenize": {"prompt": "Hello"},
    "/v1/detokenize": {"tokens": [300, 301]},
}
"""Minimal bodies for each endpoint, with short answers."""

PARAMETERS = sorted(
    {
        *NEARLY,
        *("model", "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"),
        *("repetition_penalty", "logprobs", "top_logprobs", "echo", "best_of", "suffix", "max_tokens", "ignore_eos"),
        *("max_completion_tokens", "max_output_tokens", "modalities", "audio", "functions", "function_call", "user"),
        *("parallel_tool_calls", "reasoning_effort", "reasoning", "instructions", "previous_response_id", "include"),
        *("truncation", "metadata", "store", "dimensions", "conversation", "made_up"),
        *("add_special_tokens", "add_generation_prompt", "continue_final_message", "return_token_strs"),
    }
)
LONG = ("max_tokens", "max_completion_tokens", "max_output_tokens")


@st.composite
def bodies(draw: st.DrawFn, path: str, model: str = MODEL, most_tokens: int = 20) -> dict[str, Any]:
    """A valid body with a few parameters replaced, mostly by nearly valid values."""
    body = {"model": model, **GOOD[path]}
    own = OWN.get(path, {})
    nearly = {**NEARLY, **own}
    for name in draw(st.lists(st.sampled_from([*PARAMETERS, *own, *own]), max_size=4, unique=True)):
        body[name] = draw(st.one_of(nearly.get(name, numbers), nearly.get(name, scalars), junk))
    if draw(st.integers(0, 9)) == 0:
        body.pop(draw(st.sampled_from(sorted(body))))
    for name in LONG:
        if type(body.get(name)) is int and body[name] > most_tokens:
            body[name] = most_tokens  # longer answers only take longer
    if path in ("/api/chat", "/api/generate") and isinstance(options := body.setdefault("options", {}), dict):
        most = options.get("num_predict")
        if type(most) not in (int, float) or not 0 < most < most_tokens:
            options["num_predict"] = most_tokens
    if not body.get("prompt") and not body.get("messages"):
        body.pop("keep_alive", None)  # it would unload the model that all tests use
    return body


def written(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


@st.composite
def damaged(draw: st.DrawFn, data: bytes, pieces: list[bytes]) -> bytes:
    """Data with some bytes removed, doubled or replaced, also by tokens of the syntax in the wrong place."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = draw(st.integers(at, min(len(data), at + 30)))
        new = draw(st.one_of(st.just(b""), st.sampled_from(pieces), st.binary(max_size=8), st.just(data[at:end] * 2)))
        data = data[:at] + new + data[end:]
    return data


JSON_PIECES = [
    b"NaN",
    b"1e999",
    b"\\ud800",
    b"\xff",
    b"[" * 300,
    b'{"a":' * 300,
    b"}",
    b'"',
    b"\x00",
    b"9" * 5000,
    b"\\",
]
HTTP_PIECES = [
    *(
        b"\r\n",
        b"\n",
        b"\r\n\r\n",
        b"\x00",
        b": ",
        b" ",
        b"\t",
        b"HTTP/9.9",
        b"POST ",
        b"%00",
        b"/../",
        b"%ff",
        b"\xff" * 20,
    ),
    *(b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n", b"Content-Length: 3\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: poem\r\n", b"Content-Encoding: gzip\r\n"),
    *(
        b"Expect: 100-continue\r\n",
        b"Expect: poem\r\n",
        b"Host: \r\n",
        b"Upgrade: websocket\r\nConnection: Upgrade\r\n",
    ),
    *(b"Content-Type: multipart/form-data; boundary=x\r\n", b"X: " + b"a" * 9000 + b"\r\n", b"Range: bytes=0-5\r\n"),
    *(b"Authorization: Bearer \xc3\xa9\r\n", b"Origin: null\r\n", b"Access-Control-Request-Headers: a,\x01,b\r\n"),
]


@st.composite
def raw_requests(draw: st.DrawFn, path: str, model: str = MODEL) -> bytes:
    """One or two requests as bytes, slightly damaged."""
    method = draw(st.sampled_from(["POST", "POST", "POST", "GET", "HEAD", "OPTIONS", "DELETE", "PATCH", "BREW"]))
    target = draw(
        st.sampled_from([path, path, f"{path}?a=%zz&b", f"http://x{path}", f"{path}/", "/v1/models/%2e%2e", "*"])
    )
    body = written({"model": model, **GOOD[path], "stream": draw(st.booleans())})
    if draw(st.booleans()):
        framing, body = "Transfer-Encoding: chunked", b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    else:
        framing = f"Content-Length: {len(body)}"
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\n{framing}\r\nConnection: close\r\n\r\n"
    return draw(damaged(head.encode() + body, HTTP_PIECES))


# --- several requests on one connection ---

Request = tuple[str, bytes]
"""Method, and the bytes of the whole request."""
ASKED = (
    "/",
    "/v1/models",
    "/v1/models/x",
    "/health",
    "/metrics",
    "/version",
    "/cluster/status",
    "/api/tags",
    "/nothing",
)


@st.composite
def pipelines(draw: st.DrawFn, path: str, model: str = MODEL) -> list[Request]:
    """Requests that are all sent before the first answer is read; the last one closes the connection."""
    asked = st.tuples(st.sampled_from(["GET", "HEAD", "HEAD", "OPTIONS", "DELETE"]), st.sampled_from(ASKED))
    posted = st.tuples(st.sampled_from(["POST", "HEAD"]), st.just(path))
    requests = draw(st.lists(st.one_of(asked, asked, posted), min_size=1, max_size=12))
    refused = draw(st.sampled_from(["", "", "X: " + "a" * 9000, "Content-Length: -1", "Host: evil.example"]))
    return [
        (method, _whole(method, target, body, refused if number == len(requests) else None))
        for body in [written({"model": model, **GOOD[path]})]
        for number, (method, target) in enumerate(requests, 1)
    ]


def _whole(method: str, target: str, body: bytes, last: str | None) -> bytes:
    """`last`: one more header of the last request; None for the others."""
    content = body if method == "POST" else b""
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(content)}"] if content else []
    lines += [] if last is None else ["Connection: close", *filter(None, [last])]
    return "\r\n".join([*lines, "", ""]).encode() + content


_HEAD = re.compile(rb"HTTP/1\.[01] (\d{3}) [^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n")


def answers_to(methods: Sequence[str], data: bytes) -> list[tuple[int, bytes]]:
    """Status and body of the answers in `data`, as a proxy tells them apart: one a request, in order, and nothing else.

    There are fewer if the server closed the connection after an error. Raises ValueError.
    """
    found = []
    for method in methods:
        if not data:
            break
        head = _HEAD.match(data)
        if head is None:
            raise ValueError(f"{data[:100]!r} is no answer to {method}, after {found}")
        status, data = int(head[1]), data[head.end() :]
        body, data = (b"", data) if method == "HEAD" or status in (204, 304) else _body(head[0], data)
        found.append((status, body))
    if data:
        raise ValueError(f"{data[:100]!r} follows the answers to {', '.join(methods)}")
    return found


def _body(head: bytes, data: bytes) -> tuple[bytes, bytes]:
    """The body of an answer, and what follows it."""
    if length := re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE):
        size = int(length[1])
        if len(data) < size:
            raise ValueError(f"a body of {size} bytes ends after {len(data)}")
        return data[:size], data[size:]
    if b"chunked" not in head.lower():
        return data, b""
    body = b""
    while True:
        size, _, rest = data.partition(b"\r\n")
        end = int(size, 16)
        body, data = body + rest[:end], rest[end + 2 :]
        if end == 0:
            return body, data
