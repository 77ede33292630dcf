"""LangChain's chat model, completion model and embeddings for OpenAI."""

import asyncio
import math

from harness import HELLO, KNOWN, MODEL, TOOL, URL, is_weather, run
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

GIVEN = {"base_url": URL, "api_key": "any", "model": MODEL, "max_retries": 0}


class Person(BaseModel):
    """Somebody."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def plain_and_streamed() -> None:
    chat = ChatOpenAI(**GIVEN, temperature=0)
    assert chat.invoke("Hello").content == HELLO
    parts = list(chat.stream("Hello"))
    assert "".join(part.content for part in parts) == HELLO
    assert chat.bind(stop=["Pippin"]).invoke("Hello").content == HELLO.split("Pippin")[0]


def at_once() -> None:
    chat = ChatOpenAI(**GIVEN, temperature=0, max_tokens=200)
    answers = asyncio.run(chat.abatch(list(KNOWN["texts"])))
    assert [answer.content for answer in answers] == list(KNOWN["texts"].values())


def completions() -> None:
    model = OpenAI(**GIVEN, temperature=0, max_tokens=8)
    assert model.invoke("1, 2, 3,") == "".join(model.stream("1, 2, 3,")) != ""


def tools() -> None:
    chat = ChatOpenAI(**GIVEN, temperature=0).bind_tools([TOOL], tool_choice="weather", parallel_tool_calls=False)
    (call,) = chat.invoke("Hello").tool_calls
    assert call["name"] == "weather"
    assert is_weather(call["args"])
    whole = None
    for part in chat.stream("Hello"):
        whole = part if whole is None else whole + part
    assert [made["args"] for made in whole.tool_calls] == [call["args"]]


def structured_output() -> None:
    chat = ChatOpenAI(**GIVEN, temperature=0, max_tokens=300)
    for method in ("json_schema", "function_calling"):
        assert isinstance(chat.with_structured_output(Person, method=method).invoke("Hello"), Person)


def responses() -> None:
    chat = ChatOpenAI(**GIVEN, temperature=0, use_responses_api=True)
    assert chat.invoke("Hello").text == HELLO
    assert "".join(part.text for part in chat.stream("Hello")) == HELLO


def embeddings() -> None:
    """Without tiktoken, which knows only OpenAI's models and downloads their files."""
    made = OpenAIEmbeddings(base_url=URL, api_key="any", model=MODEL, check_embedding_ctx_length=False)
    one, other = made.embed_documents(["Hello", "Good evening"])
    assert abs(math.hypot(*one) - 1) < 1e-3
    assert one != other


if __name__ == "__main__":
    run(plain_and_streamed, at_once, completions, tools, structured_output, responses, embeddings)
