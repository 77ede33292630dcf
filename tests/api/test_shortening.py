"""Chats that are longer than the context: what is left out, and where it is."""

import pytest

from api.chat.shortening import ANSWER_SHARE, PARTS, STRIDE, endings, fitting, prompt_room, shortenings
from node.core.errors import ContextExceeded
from tests.api.test_ollama import MODEL, prompt_of

CHAT = [
    {"role": "system", "content": "S."},
    *({"role": role, "content": f"{role[0]}{turn}"} for turn in range(1, 8) for role in ("user", "assistant")),
    {"role": "user", "content": "now"},
]
AGENT = [
    {"role": "user", "content": "before"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "do it"},
    *({"role": role, "content": f"{role}{step}"} for step in range(3) for role in ("assistant", "tool")),
]


def kept(messages, shortening):
    return [each["content"] for each in shortening.of(messages)]


def roles(messages):
    return [each["role"] for each in messages]


def test_the_oldest_turns_go_and_those_of_the_system_stay():
    whole, *rest = [kept(CHAT, each) for each in shortenings(roles(CHAT))]
    assert whole == [each["content"] for each in CHAT]
    assert rest[0] == [
        "S.",
        "u5",
        "a5",
        "u6",
        "a6",
        "u7",
        "a7",
        "now",
    ]  # STRIDE turns at once, as long as that many are left
    assert rest[1:-PARTS] == [["S.", "u6", "a6", "u7", "a7", "now"], ["S.", "u7", "a7", "now"]]
    assert rest[-PARTS] == ["S.", "now"]


def test_of_an_agents_turn_the_task_and_the_last_step_stay():
    found = [kept(AGENT, each) for each in shortenings(roles(AGENT))]
    assert found[1] == ["do it", "assistant0", "tool0", "assistant1", "tool1", "assistant2", "tool2"]
    assert found[2] == ["do it", "assistant1", "tool1", "assistant2", "tool2"]
    assert found[3] == ["do it", "assistant2", "tool2"]
    assert found[4] == ["do it"[5 // PARTS :], "assistant2", "tool2"]


def test_at_last_the_users_text_loses_its_beginning():
    text = "".join(chr(ord("a") + part) for part in range(PARTS))
    found = [kept([{"role": "user", "content": text}], each) for each in shortenings(["user"])]
    assert found == [[text[part:]] for part in range(PARTS)] == [[each] for each in endings(text)]


def test_a_chat_without_a_user_may_lose_its_oldest_answers():
    messages = [{"role": "system", "content": "S."}, *({"role": "assistant", "content": str(n)} for n in range(3))]
    assert [kept(messages, each) for each in shortenings(roles(messages))] == [
        ["S.", "0", "1", "2"],
        ["S.", "1", "2"],
        ["S.", "2"],
    ]


@pytest.mark.parametrize("first", range(9))
async def test_the_longest_that_fits_is_found(first):
    candidates = list(range(8))  # candidate k has 80 - 10 * k tokens, and is refused unread beyond 60

    async def encode(candidate):
        if candidate < 2:
            raise ContextExceeded("too long")
        return [0] * (80 - 10 * candidate)

    most = 80 - 10 * first
    if first > 7:
        with pytest.raises(ContextExceeded, match="10 tokens"):
            await fitting(candidates, encode, most)
    else:
        found, prompt = await fitting(candidates, encode, most)
        assert (found, len(prompt)) == (max(first, 2), 80 - 10 * max(first, 2))


def test_there_is_room_for_an_answer():
    assert prompt_room(800, None) == 800 - 800 // ANSWER_SHARE
    assert prompt_room(800, 20) == 780
    assert prompt_room(800, 5000) == 700
    assert prompt_room(4, None) == 3


# --- the surfaces ---


def long_chat(server):
    """A chat of twice the context, in turns of some tokens."""
    turns = []
    while sum(len(each["content"]) for each in turns) < 2 * server.backend.model.context * 2:
        number = len(turns) // 2
        turns += [
            {"role": "user", "content": f"question {number}?"},
            {"role": "assistant", "content": f"reply {number}."},
        ]
    return [{"role": "system", "content": "Be kind."}, *turns, {"role": "user", "content": "And now?"}]


async def test_ollamas_chat_loses_its_oldest_messages(server, ollama_client, caplog):
    caplog.set_level("INFO")
    messages = long_chat(server)
    answer = await ollama_client.chat(MODEL, messages)
    assert answer.done_reason == "stop"
    prompt, context = server.backend.requests[-1].prompt, server.backend.model.context
    assert context // 2 < len(prompt) <= context - context // ANSWER_SHARE
    text = prompt_of(server)
    assert text.startswith("<|bos|><|system|>Be kind.<|end|><|user|>question ")
    assert text.endswith("<|user|>And now?<|end|><|assistant|>")
    assert "question 0?" not in text
    assert "its oldest are left out: " in caplog.text


async def test_most_turns_begin_as_the_one_before_did(server, ollama_client):
    messages, begins = long_chat(server), []
    for _ in range(2 * STRIDE):
        await ollama_client.chat(MODEL, messages)
        begins.append(server.backend.requests[-1].prompt[:40])
        messages += [{"role": "assistant", "content": "Now."}, {"role": "user", "content": "Then?"}]
    assert 1 < len(set(begins)) <= 3


async def test_ollamas_truncate_false_refuses_it(server):
    for path, given in (("/api/chat", {"messages": long_chat(server)}), ("/api/generate", {"prompt": "word " * 9000})):
        found = await server.post(path, {"model": MODEL, "truncate": False, **given})
        assert found.status == 400
        assert "context" in found.json["error"]
    assert not server.backend.requests


@pytest.mark.parametrize("raw", [False, True])
async def test_a_prompt_of_ollamas_generate_loses_its_beginning(server, raw):
    prompt = " ".join(map(str, range(9000)))
    for truncate in ({}, {"truncate": True}, {"truncate": None}):
        found = await server.ask_ollama("/api/generate", prompt=prompt, raw=raw, **truncate)
        assert found.status == 200
        text, context = prompt_of(server), server.backend.model.context
        assert text.removesuffix("<|end|><|assistant|>").endswith(" 8998 8999")
        assert " 17 " not in text
        assert context // 2 < len(server.backend.requests[-1].prompt) <= context - context // ANSWER_SHARE


async def test_responses_truncate_if_asked(server):
    messages = long_chat(server)
    refused = await server.post("/v1/responses", {"model": MODEL, "input": messages})
    assert (refused.status, refused.json["error"]["code"]) == (400, "context_length_exceeded")
    found = await server.post("/v1/responses", {"model": MODEL, "input": messages, "truncation": "auto"})
    assert (found.status, found.json["truncation"]) == (200, "auto")
    assert prompt_of(server).startswith("<|bos|><|system|>Be kind.<|end|><|user|>question ")
