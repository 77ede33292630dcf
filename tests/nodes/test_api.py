"""Promises of the API that only a real model can show or break, on one node and on three."""

import json
import re
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ollama
import pytest

from tests.conftest import MODEL, ROOT, Cluster, Node, chat_body, running_cluster, until

pytestmark = pytest.mark.slow

COUNT = "Count from 1 to 20"
STORY = "Tell me a story."


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_cluster(tmp_path_factory.mktemp("one")) as cluster:
        (node,) = cluster.start(1, "--model", MODEL, "--ollama-port", "0")
        cluster.ready(node)
        yield node


@pytest.fixture(params=["one", "three"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A node alone, or the last of three that split the model. Tests leave it unchanged."""
    if request.param == "one":
        node: Node = request.getfixturevalue("one")
    else:
        three: Cluster = request.getfixturevalue("three")
        three.ready(*three.nodes)
        node = three.nodes[-1]
    yield node
    until(lambda: node.running() == 0, "nothing runs on")
    assert node.chat("Hello").status == 200


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from node.text.tokenizer import Tokenizer

    return Tokenizer(ROOT / "node" / "builtin" / MODEL)


def complete(node: Node, prompt: Any, **body: Any) -> Any:
    answer = node.post("/v1/completions", {"model": MODEL, "prompt": prompt, "temperature": 0, **body})
    assert answer.status == 200, answer.body
    return answer.json


def texts(answer: Any) -> list[str]:
    return [choice["message"]["content"] for choice in answer.json["choices"]]


# --- messages ---------------------------------------------------------------------------------------------------------


def test_the_prompt_is_the_templates(node: Node, tokenizer: Any) -> None:
    """Token by token, as `usage` counts them. Text of messages never becomes a control token."""
    for content in (
        "Hello",
        "",
        "  a \n b ",
        "<|end|><|assistant|>",
        "日本 🙂",
        [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}],
    ):
        typed = content if isinstance(content, str) else "Hello"
        expected = len(tokenizer.encode_chat([{"role": "user", "content": typed}]))
        assert node.chat(content, max_tokens=1).json["usage"]["prompt_tokens"] == expected
    assert node.chat("<|end|>" * 8, max_tokens=1).json["usage"]["prompt_tokens"] > expected + 8


def test_hundreds_of_messages(node: Node) -> None:
    messages = [{"role": ("user", "assistant")[number % 2], "content": "Hi"} for number in range(301)]
    answer = node.post("/v1/chat/completions", {**chat_body(""), "messages": messages, "max_tokens": 3})
    assert answer.status == 200, answer.body


def test_a_last_message_of_the_assistant_is_continued(node: Node, stock: dict[str, str]) -> None:
    begun, rest = stock[COUNT][:9], stock[COUNT][9:]
    messages = [{"role": "user", "content": COUNT}, {"role": "assistant", "content": begun}]
    answer = node.post("/v1/chat/completions", {**chat_body(""), "messages": messages})
    assert answer.text == rest


def test_a_prompt_far_over_the_context_is_refused(node: Node) -> None:
    for stream in (False, True):
        answer = node.chat("word " * 200_000, stream=stream)
        assert (answer.status, answer.error["code"], answer.error["param"]) == (
            400,
            "context_length_exceeded",
            "messages",
        )


# --- streams ----------------------------------------------------------------------------------------------------------


def test_tokens_come_one_by_one(node: Node) -> None:
    with node.stream(COUNT, max_tokens=50, stream_options={"include_usage": True}) as events:
        pieces = [
            choice["delta"]["content"]
            for chunk in events
            for choice in chunk["choices"]
            if choice["delta"].get("content")
        ]
    assert events.usage
    assert len(pieces) >= 0.8 * events.usage["completion_tokens"]


def test_a_stream_of_several_choices(node: Node) -> None:
    body = {"n": 3, "seed": 5, "temperature": 1.5, "max_tokens": 20}
    joined = dict.fromkeys(range(3), "")
    with node.stream(STORY, **body) as events:
        for chunk in events:
            for choice in chunk["choices"]:
                joined[choice["index"]] += choice["delta"].get("content") or ""
    assert list(joined.values()) == texts(node.chat(STORY, **body))
    assert len(set(joined.values())) == 3


def test_greedy_choices_are_equal_and_all_are_counted(node: Node) -> None:
    answer = node.chat("Hello", n=4)
    assert len(set(texts(answer))) == 1
    alone = node.chat("Hello").json["usage"]
    usage = answer.json["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (
        alone["prompt_tokens"],
        4 * alone["completion_tokens"],
    )


# --- ends -------------------------------------------------------------------------------------------------------------


def test_control_tokens_are_never_shown_even_if_forced(node: Node, tokenizer: Any) -> None:
    for token in tokenizer.control:
        forced = {"logit_bias": {str(token): 100}, "max_tokens": 5}
        for more in ({}, {"ignore_eos": True}):
            answer = node.chat("Hello", **forced, **more)
            assert "<" not in answer.text
            assert node.streamed("Hello", **forced, **more) == answer.text
        assert "<" not in complete(node, "Hello", **forced)["choices"][0]["text"]


def test_a_banned_end_goes_on_to_the_limit(node: Node, tokenizer: Any) -> None:
    answer = node.chat("Hello", logit_bias={str(token): -100 for token in tokenizer.eos}, max_tokens=60)
    assert answer.json["choices"][0]["finish_reason"] == "length"
    assert answer.json["usage"]["completion_tokens"] == 60
    assert "<|" not in answer.text


def test_what_may_begin_a_stop_is_told_at_the_limit(node: Node) -> None:
    free = node.chat(COUNT, max_tokens=9).text
    held = {"max_tokens": 9, "stop": f"{free}?"}
    assert node.chat(COUNT, **held).text == free
    assert node.streamed(COUNT, **held) == free


def test_a_shorter_limit_gives_a_beginning(node: Node) -> None:
    longest = node.chat(COUNT, max_tokens=12).text
    for limit in (1, 2, 7):
        answer = node.chat(COUNT, max_tokens=limit)
        assert longest.startswith(answer.text)
        assert answer.json["usage"]["completion_tokens"] == limit


# --- sampling ---------------------------------------------------------------------------------------------------------


def test_bias_forces_and_bans(node: Node, tokenizer: Any) -> None:
    (one, *_) = tokenizer.encode("1")
    banned = node.chat(COUNT, logit_bias={str(one): -100}, max_tokens=20).text
    assert not banned.startswith("1")
    (word, *_) = tokenizer.encode("a")
    assert node.chat(COUNT, logit_bias={str(word): 100}, max_tokens=5).text == "aaaaa"


def test_penalties_work_on_what_was_generated(node: Node) -> None:
    plain = Counter(node.chat(COUNT, max_tokens=60, ignore_eos=True).text.split(", "))
    for penalty in ("presence_penalty", "frequency_penalty"):
        punished = node.chat(COUNT, max_tokens=60, ignore_eos=True, **{penalty: 2}).text
        assert Counter(punished.split(", ")) != plain
        (first,) = {node.chat(COUNT, max_tokens=1, **{penalty: value}).text for value in (-2, 0, 2)}
        assert first, "the first token has nothing before it"


def test_logprobs(node: Node) -> None:
    asked = {"logprobs": True, "top_logprobs": 3, "max_tokens": 30}
    answer = node.chat("Hello", **asked)
    content = answer.json["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == answer.text
    for entry in content:
        values = [other["logprob"] for other in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)
        assert (len(values), entry["logprob"]) == (3, values[0])  # greedy
        assert values[0] <= 0
    with node.stream("Hello", **asked) as events:
        parts = [choice["logprobs"] for chunk in events for choice in chunk["choices"] if choice["logprobs"]]
    streamed = [entry for part in parts for entry in part["content"]]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in content]
    assert all(abs(a["logprob"] - b["logprob"]) < 1e-2 for a, b in zip(streamed, content, strict=True))
    # Before temperature, bias and penalties.
    altered = node.chat("Hello", **asked, seed=1, temperature=0.01, logit_bias={"5": -50}, frequency_penalty=0.01)
    told = altered.json["choices"][0]["logprobs"]["content"][0]
    assert abs(told["logprob"] - content[0]["logprob"]) < 1e-2


def test_logprobs_of_several_choices_of_a_stream(node: Node) -> None:
    """Each choice has those of a request of its own with its seed."""
    asked = {"logprobs": True, "top_logprobs": 2, "max_tokens": 12, "temperature": 1.5, "ignore_eos": True}
    alone = [node.chat(STORY, seed=seed, **asked).json["choices"][0]["logprobs"]["content"] for seed in (5, 6, 7)]
    assert len({json.dumps(content) for content in alone}) == 3
    with node.stream(STORY, seed=5, n=3, **asked) as events:
        choices = [choice for chunk in events for choice in chunk["choices"] if choice["logprobs"]]
    for index, content in enumerate(alone):
        own = [entry for choice in choices if choice["index"] == index for entry in choice["logprobs"]["content"]]
        assert [entry["token"] for entry in own] == [entry["token"] for entry in content]
        for one, other in zip(own, content, strict=True):
            assert abs(one["logprob"] - other["logprob"]) < 1e-2
            assert [top["token"] for top in one["top_logprobs"]] == [top["token"] for top in other["top_logprobs"]]


def test_tokens_of_a_chat_are_counted_without_computing(node: Node) -> None:
    messages = [{"role": "user", "content": STORY}]
    told = node.post("/tokenize", {"model": MODEL, "messages": messages, "return_token_strs": True}).json
    assert told["count"] == node.chat(STORY, max_tokens=1).json["usage"]["prompt_tokens"] == len(told["token_strs"])
    text = node.post("/detokenize", {"model": MODEL, "tokens": told["tokens"]}).json["prompt"]
    again = node.post("/tokenize", {"model": MODEL, "prompt": text}).json
    assert (again["tokens"], again["max_model_len"]) == (told["tokens"], 16384)
    assert again["count"] < node.post("/tokenize", {"model": MODEL, "prompt": text * 300}).json["count"]


# --- legacy completions -----------------------------------------------------------------------------------------------


def test_prompts_in_four_forms(node: Node, tokenizer: Any) -> None:
    prompts = ["1, 2, 3,", " The capital of", "Hello"]
    alone = [complete(node, prompt, max_tokens=6) for prompt in prompts]
    expected = [answer["choices"][0]["text"] for answer in alone]
    for several in (prompts, [tokenizer.encode(prompt) for prompt in prompts]):
        answer = complete(node, several, max_tokens=6)
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        assert [choice["text"] for choice in answer["choices"]] == expected
        for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert answer["usage"][count] == sum(each["usage"][count] for each in alone)
    assert complete(node, tokenizer.encode(prompts[0]), max_tokens=6)["choices"][0]["text"] == expected[0]
    assert complete(node, prompts[0], ignore_eos=True)["usage"]["completion_tokens"] == 16
    twice = complete(node, prompts[:2], n=2, max_tokens=6)
    assert [choice["text"] for choice in twice["choices"]] == [text for text in expected[:2] for _ in range(2)]


def test_legacy_logprobs_and_echo(node: Node) -> None:
    (choice,) = complete(node, " 1, 2, 3,", max_tokens=6, logprobs=2, ignore_eos=True)["choices"]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    for token, offset, top in zip(logprobs["tokens"], logprobs["text_offset"], logprobs["top_logprobs"], strict=True):
        assert choice["text"][offset:].startswith(token)
        assert len(top) >= 2
    echoed = complete(node, " 1, 2, 3,", max_tokens=6, echo=True, ignore_eos=True)["choices"][0]["text"]
    assert echoed == " 1, 2, 3," + choice["text"]


# --- under load -------------------------------------------------------------------------------------------------------


def test_a_busy_node_answers_the_small_questions_at_once(node: Node) -> None:
    def ask(_: int) -> str:
        return node.streamed(COUNT, max_tokens=150, ignore_eos=True)

    with ThreadPoolExecutor(16) as pool:
        streams = [pool.submit(ask, number) for number in range(16)]
        until(lambda: node.running() > 8, "the streams run")
        assert node.chat("Hello", max_tokens=3).status == 200
        assert not any(stream.done() for stream in streams), "a short request waits for no long one"
        answers = 0
        while not all(stream.done() for stream in streams):
            for path in ("/health", "/v1/models"):
                assert node.get(path).status == 200
                answers += 1
    assert len({stream.result() for stream in streams}) == 1
    assert answers > 10


def test_a_burst_is_served_or_refused(node: Node) -> None:
    def ask(_: int) -> int:
        answer = node.chat("Hello", max_tokens=5)
        assert answer.status == 200 or answer.headers["Retry-After"]
        return answer.status

    with ThreadPoolExecutor(40) as pool:
        statuses = Counter(pool.map(ask, range(40)))
    assert set(statuses) <= {200, 429, 503}
    assert statuses[200] >= 16


@pytest.mark.parametrize("stream", [False, True])
def test_who_hangs_up_during_prefill_frees_the_place(node: Node, stream: bool) -> None:
    body = json.dumps(chat_body("1, 2, " * 350, stream=stream, max_tokens=500, ignore_eos=True)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for _ in range(3):
        before = node.answered()
        with socket.create_connection((node.host, node.port)) as client:
            client.sendall(head + body)
            until(lambda: node.running() == 1, "it runs")
        until(lambda: node.running() == 0, "its place is free")
        assert node.answered() < before + 500, "it did not go on to its end"


# --- the second port --------------------------------------------------------------------------------------------------


def test_the_ollama_port(one: Node, stock: dict[str, str]) -> None:
    found = re.search(r"Ollama's clients find the API on port (\d+)", one.written)
    assert found
    asked = [{"role": "user", "content": "Hello"}]
    with ollama.Client(host=f"http://{one.host}:{found[1]}") as client:
        assert client.chat(MODEL, asked, options={"temperature": 0}).message.content == stock["Hello"]
