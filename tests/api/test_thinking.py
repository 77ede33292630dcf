"""How long an answer may think: what a request says of it, and what the driver is told."""

import pytest

from node.core.generation import ThinkingBudget
from node.text.thoughts import QWEN, thinking_budget
from tests.api.families import FAMILIES, HARMONY, Family, make

MODEL = "pippin/demo"
USER = [{"role": "user", "content": "Hello"}]
QWEN3 = Family(FAMILIES["qwen"].hint, "", ("<|im_start|>", "<|im_end|>"), FAMILIES["qwen"].added)
FORMAT = {"type": "json_object"}
TOOL = {"type": "function", "function": {"name": "now", "strict": True, "parameters": {"type": "object"}}}


def spelled(tokenizer, budget: ThinkingBudget) -> list[str]:
    return [tokenizer.spell(tokens) for tokens in (budget.begin, budget.ends, budget.closing)]


def test_the_marks_of_each_family(tmp_path):
    qwen3, other = make(QWEN3, tmp_path / "qwen3"), make(FAMILIES["qwen"], tmp_path / "other")
    harmony, plain = make(HARMONY, tmp_path / "harmony"), make(FAMILIES["mistral"], tmp_path / "plain")
    assert spelled(other, thinking_budget(other, [], 5, tools=True)) == ["<think>", "</think><tool_call>", "\n</think>"]
    assert spelled(qwen3, thinking_budget(qwen3, [], 5, tools=True)) == [
        "<think>",
        "</think><tool_call>",
        f"{QWEN}</think>",
    ]
    assert spelled(qwen3, thinking_budget(qwen3, [], 5, tools=False))[1] == "</think>", "a mark of calls is text"
    begun = qwen3.encode("<|im_start|>assistant\n<think>\n")
    assert spelled(qwen3, thinking_budget(qwen3, begun, 5, tools=True))[0] == ""
    assert spelled(harmony, thinking_budget(harmony, [], 5, tools=True)) == [
        "<|channel|>analysis<|message|>",
        "<|end|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ]
    assert thinking_budget(plain, [], 5, tools=True) is None


@pytest.mark.parametrize(
    ("path", "said", "tokens"),
    [
        ("/v1/chat/completions", {"max_thinking_tokens": 7}, 7),
        ("/v1/chat/completions", {"thinking_budget": 0}, 0),
        ("/v1/chat/completions", {"thinking_token_budget": 7, "n": 2}, 7),
        ("/v1/chat/completions", {"reasoning": {"max_tokens": 7, "effort": "low"}}, 7),
        ("/v1/chat/completions", {"max_thinking_tokens": 9, "thinking_budget": 7, "tools": [TOOL]}, 7),
        ("/v1/chat/completions", {"max_thinking_tokens": 7, "response_format": FORMAT}, None),
        ("/v1/chat/completions", {"reasoning": {"effort": "low"}}, None),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, 1024),
        ("/v1/messages", {"thinking": {"type": "disabled"}}, None),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}, "thinking_budget": 9}, 9),
        ("/v1/responses", {"reasoning": {"max_tokens": 7}}, 7),
        ("/v1/responses", {"max_thinking_tokens": 7}, 7),
    ],
)
async def test_what_the_driver_is_told(server, backend, tmp_path, path, said, tokens):
    backend.model.tokenizer = make(QWEN3, tmp_path)
    backend.say("<think>\nHm.\n</think>\n\n{}")
    messages = {"input": "Hello"} if path == "/v1/responses" else {"messages": USER}
    limit = {"max_tokens": 2000} if path == "/v1/messages" else {}
    answer = await server.post(path, {"model": MODEL, **messages, **limit, **said})
    assert answer.status == 200, answer.json
    assert len(backend.requests) == said.get("n", 1)
    for request in backend.requests:
        assert (request.thinking.tokens if request.thinking else None) == tokens
        assert bool(request.grammar) == ("tools" in said or "response_format" in said)


async def test_an_effort_by_its_other_name_reaches_the_template(server, monkeypatch):
    given = []

    async def encode_chat(messages, tools, more, *, context):
        given.append(more)
        return [1, 2, 3]

    monkeypatch.setattr(type(server.backend.model), "encode_chat", staticmethod(encode_chat))
    server.backend.say("{}")
    for said in ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}):
        await server.post("/v1/chat/completions", {"model": MODEL, "messages": USER, **said})
    assert given == [{"reasoning_effort": "low"}] * 2


@pytest.mark.parametrize(
    ("said", "param"),
    [
        ({"max_thinking_tokens": -2}, "max_thinking_tokens"),
        ({"thinking_budget": "many"}, "thinking_budget"),
        ({"thinking_token_budget": 0.5}, "thinking_token_budget"),
        ({"reasoning": {"max_tokens": -1}}, "reasoning.max_tokens"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ],
)
async def test_bad_values_are_refused_by_name(server, said, param):
    answer = await server.post("/v1/chat/completions", {"model": MODEL, "messages": USER, **said})
    assert (answer.status, answer.error["param"]) == (400, param)
