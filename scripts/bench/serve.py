"""Load on any OpenAI-compatible server: time to the first token, time between tokens, tokens per second.

`streams` requests run at a time until all have been answered. Each asks for the same number of tokens, and continues
after the model's end of answer if the server supports that (ignore_eos). A gap is the time between two events with
text, at the client. With --long-prompt, a long prompt arrives while the streams run; the longest gap that one of them
has then is the stall.
"""

import argparse
import asyncio
import time
from dataclasses import dataclass, field

import aiohttp
import figures
import prompts
import sse
from figures import Row, median, percentile, report
from sse import Answer, Json

HELP = "an OpenAI-compatible server: time to first token, gaps, tokens/s"
OPTIONAL: tuple[Json, ...] = ({"ignore_eos": True}, {"stream_options": {"include_usage": True}})
"""Parameters that are dropped, from the left, when a server refuses them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--base-url", required=True, metavar="URL", help="such as http://localhost:52415/v1")
    add("--model", metavar="ID", help="default: the first that the server lists")
    add(
        "--streams",
        type=figures.numbers,
        default=[1, 4, 16, 64],
        metavar="N,N",
        help="requests at a time (default: 1,4,16,64)",
    )
    add("--prompt-tokens", type=int, default=64, metavar="N", help="approximate length (default: %(default)s)")
    add("--max-tokens", type=int, default=128, metavar="N", help="of each answer (default: %(default)s)")
    add("--requests", type=int, metavar="N", help="for each number of streams (default: as many, but 4 at least)")
    add("--long-prompt", type=int, metavar="N", help="send a prompt of N tokens while the streams run: the stall")


def run(options: argparse.Namespace) -> list[Row]:
    return asyncio.run(_measure(options))


async def _measure(options: argparse.Namespace) -> list[Row]:
    async with sse.client() as http:
        target = await find_target(http, options.base_url, options.model)
        await target.warm_up(max(options.streams))
        rows = [
            await _level(target, streams, options.requests or max(streams, 4), options) for streams in options.streams
        ]
        report(f"{target.model} at {options.base_url}, prompts of {rows[0]['prompt tokens']} tokens", rows)
        if options.long_prompt:
            stalls = [await _stall(target, streams, options) for streams in options.streams]
            notes = ["The long prompt should come while all streams run: else raise --max-tokens."]
            report(f"A prompt of about {options.long_prompt} tokens comes while the streams run", stalls, notes)
            rows += stalls
    return rows


@dataclass(slots=True)
class Target:
    """A server, its model, and the optional parameters that it accepts."""

    http: aiohttp.ClientSession
    base_url: str
    model: str
    optional: list[Json] = field(default_factory=lambda: list(OPTIONAL))
    tokens_per_word: float = 1.0
    tokens_around: float = 0.0
    """Tokens that the chat template adds."""

    def body(self, prompt_tokens: int, max_tokens: int) -> Json:
        words = round((prompt_tokens - self.tokens_around) / self.tokens_per_word)
        return self._body(words, max_tokens)

    def _body(self, words: int, max_tokens: int) -> Json:
        messages = [{"role": "user", "content": prompts.text(words)}]
        body: Json = {"model": self.model, "messages": messages, "max_tokens": max_tokens, "temperature": 0}
        for wish in self.optional:
            body |= wish
        return body

    async def ask(self, body: Json, answer: Answer | None = None) -> Answer:
        return await sse.stream(self.http, f"{self.base_url}/chat/completions", body, answer)

    async def warm_up(self, streams: int) -> None:
        """Find out the accepted parameters and the tokens per word; then warm up with as many streams as will run."""
        short = await self._probe(8)
        long = await self._probe(72)
        if long.prompt_tokens > short.prompt_tokens:
            self.tokens_per_word = (long.prompt_tokens - short.prompt_tokens) / 64
            self.tokens_around = short.prompt_tokens - 8 * self.tokens_per_word
        await asyncio.gather(*(self.ask(self.body(16, 4)) for _ in range(streams)))

    async def _probe(self, words: int) -> Answer:
        while True:
            try:
                return await self.ask(self._body(words, 2))
            except sse.RefusedError as error:
                if error.status not in (400, 422) or not self.optional:
                    raise
                print(f"The server refuses {', '.join(self.optional.pop(0))}.")


async def find_target(http: aiohttp.ClientSession, base_url: str, model: str | None) -> Target:
    base_url = base_url.rstrip("/")
    if model is None:
        async with http.get(f"{base_url}/models") as response:
            model = str((await response.json())["data"][0]["id"])
    return Target(http, base_url, model)


async def _level(target: Target, streams: int, requests: int, options: argparse.Namespace) -> Row:
    left = requests
    answers: list[Answer] = []

    async def work() -> None:
        nonlocal left
        while left:
            left -= 1
            answers.append(await target.ask(target.body(options.prompt_tokens, options.max_tokens)))

    begin = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(streams)))
    wall = time.perf_counter() - begin
    gaps = [gap for answer in answers for gap in answer.gaps]
    ttfts = [answer.ttft for answer in answers]
    tokens = sum(answer.tokens for answer in answers)
    return {
        "streams": streams,
        "requests": requests,
        "prompt tokens": round(median([answer.prompt_tokens for answer in answers])),
        "tokens": tokens,
        "TTFT p50 ms": percentile(ttfts, 0.5) * 1000,
        "TTFT p99 ms": percentile(ttfts, 0.99) * 1000,
        "gap p50 ms": percentile(gaps, 0.5) * 1000,
        "gap p99 ms": percentile(gaps, 0.99) * 1000,
        "tok/s a stream": median([answer.rate for answer in answers]),
        "tok/s in total": tokens / wall,
    }


async def _stall(target: Target, streams: int, options: argparse.Namespace) -> Row:
    """Measure the longest gap of any stream before the long prompt is sent, and from then until its first token."""
    answers = [Answer() for _ in range(streams)]
    tasks = [
        asyncio.create_task(target.ask(target.body(options.prompt_tokens, options.max_tokens), answer))
        for answer in answers
    ]
    await asyncio.gather(*(answer.begun.wait() for answer in answers))
    intruder = await target.ask(target.body(options.long_prompt, 1))
    await asyncio.gather(*tasks)
    before = [gap for answer in answers for gap in _gaps_between(answer, 0, intruder.sent)]
    during = [gap for answer in answers for gap in _gaps_between(answer, intruder.sent, intruder.first)]
    return {
        "streams": streams,
        "long prompt": intruder.prompt_tokens or options.long_prompt,
        "its TTFT ms": intruder.ttft * 1000,
        "gap p50 before ms": percentile(before, 0.5) * 1000,
        "longest gap before ms": max(before, default=float("nan")) * 1000,
        "gap p50 during ms": percentile(during, 0.5) * 1000,
        "stall ms": max(during, default=float("nan")) * 1000,
        "streams that ran on": sum(answer.ended > intruder.first for answer in answers),
    }


def _gaps_between(answer: Answer, begin: float, end: float) -> list[float]:
    """Return the gaps that overlap the period from `begin` to `end`."""
    pairs = zip(answer.texts, answer.texts[1:], strict=False)
    return [after - before for before, after in pairs if after > begin and before < end]
