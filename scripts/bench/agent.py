"""Turns of a coding agent: a long system prompt with tools, then the tool's result and a question.

The requests are those of coding agents: /v1/chat/completions, streamed, with a system prompt of --prompt-tokens tokens (with the tools),
20 tools, and answers of --answer-tokens. Each turn is the one before, its answer with a call of a tool, the tool's result, and a question.
A model of random weights calls no tools by itself, so the call is added. On one node and on a ring of 2:

  turn 1        of a prompt that the ring has not seen
  later turn    the median of --turns; `ratio` is its TTFT in relation to turn 1's
  after others  one more turn, after --others requests with other system prompts, as sub-agents send them
  /v1/messages  one more turn, of Anthropic's API
  cancelled     the client hangs up while another prompt is computed; the time until its place is free
  asked again   the cancelled request once more
  all killed    one more turn of a ring of 2, all of whose nodes are killed and started again; `ratio` to turn 1, as above
  other model   the same after the model was unloaded, and another one has answered; it comes before the kill
  3 nodes       and one more, after they are killed again and started with a third one: the layers are cut otherwise
  N agents      with one system prompt and a question each, all at once: a first turn, then a second one; TTFT of the slowest one
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import figures
import messages_wire
import prompts
import ring_nodes
import sse
from figures import Row, at_most, report
from ring import MODELS
from ring_nodes import NodeRing
from sse import Answer, Json

HELP = "turns of a coding agent: TTFT and reuse of the earlier turns' KV"
TARGET = 0.01
"""Of a later turn: the share of its prompt that is computed, and its TTFT in relation to the first one's."""
AFTER_KILL, AFTER_CUT = 0.05, 0.15
"""Of a turn whose KV comes from disks: its TTFT in relation to the first one's."""
OTHER_MODEL = "other model"
BLOCK = 256
"""Tokens of a block on a disk."""
TOKENS_PER_WORD = 1.2
OTHERS_TOKENS = 4000
PREFILLING_S = 1.0
"""Seconds after which a prompt is certainly being computed, and is not done."""
AGAIN_S = 2.0
"""Seconds after which a person asks again; what was in flight has come back by then, and its KV is kept."""
FREE_S = 30.0
QUESTION = {"role": "user", "content": "Go on."}
NOTES = (
    "computed  tokens of the prompt that were not reused; of N agents, of all of them",
    f"target    of later turns: at most {TARGET:.0%} of the prompt computed, and of turn 1's TTFT",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--preset", default="tiny-qwen3", help="of scripts/make_model.py (default: %(default)s)")
    add("--stages", type=figures.numbers, default=[1, 2], metavar="N,N", help="nodes of each ring (default: 1,2)")
    add("--prompt-tokens", type=int, default=30_000, metavar="N", help="of the first turn (default: %(default)s)")
    add("--answer-tokens", type=int, default=32, metavar="N", help="of each answer (default: %(default)s)")
    add("--agents", type=int, default=8, metavar="N", help="with one system prompt, 0: none (default: %(default)s)")
    add("--turns", type=int, default=3, metavar="N", help="later turns; the median counts (default: %(default)s)")
    add("--others", type=int, default=4, metavar="N", help="requests between two turns (default: %(default)s)")
    add("--context", type=int, default=40_960, metavar="N", help="of the nodes (default: %(default)s)")
    add("--preload", type=Path, metavar="LIB", help="a tuned BLAS for the nodes (LD_PRELOAD, one thread)")
    add("--models-dir", type=Path, default=MODELS, metavar="DIR", help="of generated models (default: %(default)s)")


def run(options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    model = ring_nodes.make_model(options.preset, options.models_dir)
    for stages in options.stages:
        with contextlib.ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pippin-bench-")))
            ring = stack.enter_context(
                ring_nodes.running(
                    stages, model, scratch, options.preload, context=options.context, pinned=False, with_keys=False
                )
            )
            rows += asyncio.run(_measure(ring, "one node" if stages == 1 else f"ring of {stages}", options))
    rows += _restarts(model, options)
    report("Turns of a coding agent", rows, NOTES)
    return rows


def _restarts(model: Path, options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    chat: list[Json] = []
    first: Answer | None = None
    with tempfile.TemporaryDirectory(prefix="pippin-bench-") as scratch:
        for stages, case, target in ((2, "turn 1", 0.0), (2, "all killed", AFTER_KILL), (3, "3 nodes", AFTER_CUT)):
            with ring_nodes.running(
                stages,
                model,
                Path(scratch),
                options.preload,
                context=options.context,
                pinned=False,
                with_keys=False,
                data="data",
            ) as ring:
                cases = [case] if first else [case, OTHER_MODEL]
                for each in cases:
                    if each == OTHER_MODEL:
                        asyncio.run(_load_another(ring))
                    answer, chat = asyncio.run(_one_turn(ring, chat, options))
                    bound = AFTER_KILL if each == OTHER_MODEL else target
                    row = _row(each, [answer], first) | (at_most(answer.ttft / first.ttft, bound) if first else {})
                    rows.append({"side": "restarts", **row})
                    print(rows[-1], flush=True)
                    first = first or answer
                    wanted = 2 * stages * (answer.prompt_tokens // BLOCK)  # with a copy of each
                    deadline = time.monotonic() + FREE_S
                    while len({*Path(scratch).glob("*/kv/*/*.safetensors")}) < wanted and time.monotonic() < deadline:
                        time.sleep(0.1)
                for pid in ring.pids:
                    os.kill(pid, signal.SIGKILL)
    return rows


async def _load_another(ring: NodeRing) -> None:
    """Unload the model, and have another one answer."""
    async with sse.client() as http:
        await asyncio.sleep(AGAIN_S)  # until all nodes know that the answer has ended
        await sse.whole(http, f"{ring.url[:-3]}/cluster/models/{ring.model}/unload", {})
        body = {"model": "pippin-demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
        await sse.whole(http, f"{ring.url}/chat/completions", body)


async def _one_turn(ring: NodeRing, chat: list[Json], options: argparse.Namespace) -> tuple[Answer, list[Json]]:
    """The answer of the chat's next turn, or of its first one, and the chat with it."""
    async with sse.client() as http:
        agent = Agent(http, ring, options.answer_tokens)
        await agent.ask(_chat(32), tools=())  # warms up
        chat = chat or _chat(await agent.words(options.prompt_tokens))
        answer = await agent.ask(chat)
        return answer, chat + _result(answer, len(chat))


async def _measure(ring: NodeRing, side: str, options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    async with sse.client() as http:
        agent = Agent(http, ring, options.answer_tokens)
        words = await agent.words(options.prompt_tokens)
        await agent.ask(_chat(32), tools=())  # warms up
        parts = [_turns(agent, words, options), _cancelled(agent, words)]
        parts += [_many(agent, words, options.agents)] if options.agents else []
        for part in parts:
            for row in await part:
                rows.append({"side": side, **row})
                print(rows[-1], flush=True)
    return rows


def _tool(number: int) -> Json:
    properties: Json = {
        "path": {"type": "string", "description": "The path of a file, relative to the folder of the project."},
        "limit": {"type": "integer", "minimum": 1, "description": "How many lines."},
        "mode": {"type": "string", "enum": ["read", "write", "append"]},
    }
    parameters = {"type": "object", "properties": properties, "required": ["path"], "additionalProperties": False}
    told = f"Tool number {number}: does something with a file of the project, and says what it has done."
    return {
        "type": "function",
        "function": {"name": f"tool_{number}", "description": told, "parameters": parameters},
    }


TOOLS = [_tool(number) for number in range(20)]


@dataclass(frozen=True, slots=True)
class Agent:
    http: aiohttp.ClientSession
    ring: NodeRing
    answer_tokens: int

    async def ask(self, messages: Sequence[Json], tools: Sequence[Json] = TOOLS) -> Answer:
        return await sse.stream(self.http, f"{self.ring.url}/chat/completions", self._body(messages, tools))

    async def ask_messages(self, messages: Sequence[Json]) -> Answer:
        body = messages_wire.body(self.ring.model, messages, TOOLS, self.answer_tokens)
        return await messages_wire.stream(self.http, f"{self.ring.url}/messages", body)

    async def words(self, prompt_tokens: int) -> int:
        """Words of a system prompt with which a prompt has so many tokens, tools included."""
        body = {"model": self.ring.model, "messages": _chat(1), "tools": TOOLS}
        around = int((await sse.whole(self.http, f"{self.ring.url}/tokenize", body))["count"])
        return round((prompt_tokens - around) / TOKENS_PER_WORD)

    async def running(self) -> int:
        """Sessions of the ring, by the metrics of its driver."""
        async with self.http.get(f"{self.ring.url[:-3]}/metrics") as response:
            text: str = await response.text()
        counts = re.findall(r"^pippin_ring_(?:running|queued)\{.*\} (.+)$", text, re.MULTILINE)
        return sum(int(float(count)) for count in counts)

    def _body(self, messages: Sequence[Json], tools: Sequence[Json]) -> Json:
        return {
            "model": self.ring.model,
            "messages": list(messages),
            "tools": list(tools),
            "tool_choice": "auto",
            "temperature": 0,
            "max_tokens": self.answer_tokens,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        }


async def _turns(agent: Agent, words: int, options: argparse.Namespace) -> list[Row]:
    chat = _chat(words)
    first = await agent.ask(chat)
    later = [first]
    for number in range(options.turns):
        chat += _result(later[-1], number)
        later.append(await agent.ask(chat))
    chat += _result(later[-1], options.turns)
    for _ in range(options.others):
        await agent.ask(_chat(round(OTHERS_TOKENS / TOKENS_PER_WORD)))
    after = await agent.ask(chat)
    chat += _result(after, options.turns + 1)
    over = await agent.ask_messages(chat)
    rows = [_row("turn 1", [first])]
    typical = sorted(later[1:], key=lambda answer: answer.ttft)[options.turns // 2]
    worst = max(typical.ttft / first.ttft, (typical.prompt_tokens - typical.cached_tokens) / typical.prompt_tokens)
    rows.append(_row("later turn", [typical], first) | at_most(worst, TARGET))
    return [*rows, _row("after others", [after], first), _row("/v1/messages", [over], first)]


async def _cancelled(agent: Agent, words: int) -> list[Row]:
    chat = _chat(words)
    task = asyncio.create_task(agent.ask(chat))
    await asyncio.sleep(PREFILLING_S)
    running = await agent.running()
    task.cancel()
    begin = time.perf_counter()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    if not running:
        raise SystemExit("The prompt was not being computed when its client hung up: give it more tokens.")
    while await agent.running():
        if time.perf_counter() - begin > FREE_S:
            raise SystemExit(f"The cancelled request still has its place after {FREE_S:.0f} s.")
        await asyncio.sleep(0.01)
    freed = time.perf_counter() - begin
    await asyncio.sleep(AGAIN_S)
    return [{"case": "cancelled", "freed s": round(freed, 3)}, _row("asked again", [await agent.ask(chat)])]


async def _many(agent: Agent, words: int, count: int) -> list[Row]:
    system = _chat(words)[:1]
    chats = [[*system, {"role": "user", "content": prompts.text(12)}] for _ in range(count)]
    firsts = await asyncio.gather(*map(agent.ask, chats))
    chats = [[*chat, *_result(answer, 1)] for chat, answer in zip(chats, firsts, strict=True)]
    seconds = await asyncio.gather(*map(agent.ask, chats))
    return [_row(f"{count} agents, turn 1", firsts), _row(f"{count} agents, turn 2", seconds)]


def _row(what: str, answers: Sequence[Answer], first: Answer | None = None) -> Row:
    waits = [answer.ttft for answer in answers]
    row: Row = {
        "case": what,
        "prompt": answers[0].prompt_tokens,
        "cached": answers[0].cached_tokens if len(answers) == 1 else None,
        "computed": sum(answer.prompt_tokens - answer.cached_tokens for answer in answers),
        "TTFT s": round(max(waits), 3),
    }
    return row | ({"ratio": round(waits[0] / first.ttft, 4)} if first else {})


def _chat(words: int) -> list[Json]:
    """A first turn, with a system prompt of so many words that no other chat has."""
    return [
        {"role": "system", "content": prompts.text(words)},
        {"role": "user", "content": prompts.text(12)},
    ]


def _result(answer: Answer, number: int) -> list[Json]:
    """What follows in the next turn."""
    arguments = json.dumps({"path": f"src/part_{number}.py", "limit": 40})
    call = {"id": f"call_{number}", "type": "function", "function": {"name": "tool_0", "arguments": arguments}}
    return [
        {"role": "assistant", "content": answer.text, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": prompts.text(24)},
        QUESTION,
    ]
