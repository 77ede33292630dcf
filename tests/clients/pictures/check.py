"""Pictures as the official packages' own examples send them; their answers are the same in all dialects."""

import base64
import os
import struct
import tempfile
import zlib
from pathlib import Path
from typing import Literal

import anthropic
import ollama
import openai
from harness import URL, post, refused, run
from pydantic import BaseModel

MODEL = os.environ["CLIENT_PICTURE_MODEL"]
QUESTION = "What is in this image? Be concise."
TOKENS = 16
HOST = URL.removesuffix("/v1")
chatgpt = openai.OpenAI(base_url=URL, api_key="none")
claude = anthropic.Anthropic(base_url=HOST, api_key="none")
llama = ollama.Client(host=HOST)
SETTINGS = {"temperature": 0, "num_predict": TOKENS}


def png(red: int) -> bytes:
    """A picture of 60 by 40 pixels whose colours change from the left to the right."""
    width, height = 60, 40
    rows = b"".join(b"\0" + bytes(v for x in range(width) for v in (red, 4 * x, 4 * y)) for y in range(height))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    written = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


LOGO = Path(tempfile.mkdtemp()) / "logo.png"
LOGO.write_bytes(png(255))
DATA = base64.b64encode(LOGO.read_bytes()).decode()


def url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def raw(*parts: str | bytes) -> str:
    """The answer without any client."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": url(part)}}
        for part in parts
    ]
    asked = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": TOKENS}
    return str(post("/chat/completions", {"model": MODEL, **asked})["choices"][0]["message"]["content"])


def chat_of_openai() -> None:
    """The README's "Vision", and the same streamed."""
    content = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}},
        {"type": "text", "text": QUESTION},
    ]
    asked = {"model": MODEL, "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": TOKENS}
    answer = chatgpt.chat.completions.create(**asked)
    assert answer.choices[0].message.content == raw(LOGO.read_bytes(), QUESTION)
    assert answer.choices[0].message.content != raw(png(0), QUESTION), "another picture"
    alone = chatgpt.chat.completions.create(**asked | {"messages": [{"role": "user", "content": QUESTION}]})
    assert answer.usage.prompt_tokens > alone.usage.prompt_tokens
    parts = chatgpt.chat.completions.create(**asked, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == answer.choices[0].message.content


def responses_of_openai() -> None:
    content = [
        {"type": "input_image", "image_url": f"data:image/png;base64,{DATA}"},
        {"type": "input_text", "text": QUESTION},
    ]
    given = [{"role": "user", "content": content}]
    answer = chatgpt.responses.create(model=MODEL, input=given, temperature=0, max_output_tokens=TOKENS)
    assert answer.output_text == raw(LOGO.read_bytes(), QUESTION)


def messages_of_anthropic() -> None:
    """examples/images.py: the client reads the file."""
    source = {"type": "base64", "media_type": "image/png", "data": LOGO}
    content = [{"type": "text", "text": "Hello!"}, {"type": "image", "source": source}]
    asked = {"model": MODEL, "max_tokens": TOKENS, "messages": [{"role": "user", "content": content}]}
    answer = claude.messages.create(**asked, extra_body={"temperature": 0})
    assert answer.content[0].text == raw("Hello!", LOGO.read_bytes())
    assert (
        claude.messages.count_tokens(model=MODEL, messages=asked["messages"]).input_tokens == answer.usage.input_tokens
    )


def chat_of_ollama() -> None:
    """examples/multimodal-chat.py: a path, bytes, or base64."""
    expected = raw(LOGO.read_bytes(), QUESTION)
    for image in (str(LOGO), LOGO, LOGO.read_bytes(), DATA):
        answer = llama.chat(MODEL, [{"role": "user", "content": QUESTION, "images": [image]}], options=SETTINGS)
        assert answer.message.content == expected


def generate_of_ollama() -> None:
    """examples/multimodal-generate.py."""
    expected = raw(LOGO.read_bytes(), "explain this comic:")
    parts = llama.generate(MODEL, "explain this comic:", images=[LOGO.read_bytes()], stream=True, options=SETTINGS)
    assert "".join(part.response for part in parts) == expected
    assert "vision" in llama.show(MODEL).capabilities


class Description(BaseModel):
    colors: list[Literal["red", "blue"]]
    setting: Literal["Indoor", "Outdoor", "Unknown"]


def structured_output_of_ollama() -> None:
    """examples/structured-outputs-image.py."""
    asked = [{"role": "user", "content": "Analyze this image.", "images": [LOGO]}]
    answer = llama.chat(MODEL, asked, format=Description.model_json_schema(), options={"temperature": 0})
    assert Description.model_validate_json(answer.message.content).setting


def addresses_are_refused() -> None:
    """A node fetches nothing for a client."""
    content = [{"type": "image_url", "image_url": {"url": "https://example.com/logo.png"}}]
    ask = chatgpt.chat.completions.create
    found = refused(openai.BadRequestError, lambda: ask(model=MODEL, messages=[{"role": "user", "content": content}]))
    assert "data:" in str(found)


run(
    chat_of_openai,
    responses_of_openai,
    messages_of_anthropic,
    chat_of_ollama,
    generate_of_ollama,
    structured_output_of_ollama,
    addresses_are_refused,
)
