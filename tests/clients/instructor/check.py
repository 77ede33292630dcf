"""instructor: answers as pydantic objects, in each of its modes."""

import instructor
from harness import ASK, MODEL, URL, run
from openai import OpenAI
from pydantic import BaseModel, Field


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def _ask(mode: instructor.Mode, **more: object) -> Person:
    client = instructor.from_openai(OpenAI(base_url=URL, api_key="any", max_retries=0), mode=mode)
    return client.chat.completions.create(
        model=MODEL, messages=ASK, response_model=Person, max_retries=0, max_tokens=300, temperature=0, **more
    )


def tools() -> None:
    assert isinstance(_ask(instructor.Mode.TOOLS), Person)


def json_schema() -> None:
    assert isinstance(_ask(instructor.Mode.JSON_SCHEMA), Person)


def partial() -> None:
    client = instructor.from_openai(OpenAI(base_url=URL, api_key="any", max_retries=0), mode=instructor.Mode.TOOLS)
    parts = client.chat.completions.create_partial(
        model=MODEL, messages=ASK, response_model=Person, max_retries=0, max_tokens=300, temperature=0
    )
    *_, last = parts
    Person.model_validate(last.model_dump())


if __name__ == "__main__":
    run(tools, json_schema, partial)
