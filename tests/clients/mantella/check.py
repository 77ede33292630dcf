"""Mantella, which gives characters in games a voice: async streams with `stop`, cancelled when somebody interrupts."""

import asyncio

from harness import HELLO, KNOWN, MODEL, URL, run
from openai import AsyncOpenAI

STOP = ["#", "\n\n"]
COUNT = "Count from 1 to 20"


async def _say(client: AsyncOpenAI, content: str, stop: list[str], most: int = 1000) -> str:
    """Read up to `most` pieces; then stop, as the game does."""
    told, pieces = "", 0
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": content}],
        stream=True,
        stop=stop,
        temperature=0,
        top_p=1,
        max_tokens=250,
        extra_headers={"HTTP-Referer": "https://example.org", "X-Title": "game"},
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta and chunk.choices[0].delta.content:
            told += chunk.choices[0].delta.content
            pieces += 1
            if pieces == most:
                break
    await stream.close()
    return told


def stops() -> None:
    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=URL, api_key="any", max_retries=0) as client:
            return [
                await _say(client, "Hello", STOP),
                await _say(client, COUNT, ["7, 8", *STOP]),
                await _say(client, COUNT, ["20, 21", *STOP]),
            ]

    whole = KNOWN["texts"][COUNT]
    assert asyncio.run(ask()) == [HELLO, whole.split("7, 8")[0], whole]


def interruptions() -> None:
    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=URL, api_key="any", max_retries=0) as client:
            cut = await asyncio.gather(*(_say(client, COUNT, STOP, most=3) for _ in range(8)))
            assert all(KNOWN["texts"][COUNT].startswith(text) for text in cut)
            return await asyncio.gather(*(_say(client, content, STOP) for content in KNOWN["texts"]))

    assert asyncio.run(ask()) == list(KNOWN["texts"].values())


if __name__ == "__main__":
    run(stops, interruptions)
