"""Scores and embeddings of real nodes are the same numbers as stock mlx-lm's for the same model."""

import base64
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import openai
import pytest

from tests.conftest import MODEL, ROOT, Cluster, Node, printed, running_cluster, until

pytestmark = pytest.mark.slow

_STOCK = """
import json, os, sys
import mlx.core as mx
import mlx_lm
from node.engine.device import choose_device
choose_device(os.environ.get("PIPPIN_DEVICE", ""))
model, tokenizer = mlx_lm.load(sys.argv[1])
found = []
for text in json.load(sys.stdin):
    tokens = tokenizer.encode(text)
    ids = mx.array([tokens])
    logits = model(ids)[0].astype(mx.float32)
    logprobs = (logits - mx.logsumexp(logits, axis=-1, keepdims=True))[:-1]
    chosen = mx.take_along_axis(logprobs, ids[0, 1:, None], axis=-1)[:, 0]
    mean = mx.mean(model.model(ids)[0].astype(mx.float32), axis=0)
    found.append({
        "tokens": tokens,
        "logprobs": chosen.tolist(),
        "likeliest": mx.max(logprobs, axis=-1).tolist(),
        "greedy": (mx.argmax(logprobs, axis=-1) == ids[0, 1:]).tolist(),
        "embedding": (mean / mx.linalg.norm(mean)).tolist(),
    })
json.dump(found, sys.stdout)
"""

TEXTS = [
    "<|user|>\nCount from 1 to 20<|end|>\n<|assistant|>\n1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12",
    "Hello 😀, what is the capital of France?",
    "Hi there",
    "Once upon a time there was a small boat. " * 16,  # several chunks
]


@pytest.fixture(scope="module")
def stock() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = printed("-c", _STOCK, str(ROOT / "node" / "builtin" / MODEL), given=TEXTS)
    return found


@pytest.fixture(scope="module", params=[1, 3])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node alone; and one of three that is neither head nor driver."""
    if request.param == 3:
        three: Cluster = request.getfixturevalue("three")
        status = three.ready(*three.nodes)
        yield next(node for node in three.nodes if node is not three.head(status))
        return
    with running_cluster(tmp_path_factory.mktemp("one")) as cluster:
        (node,) = cluster.start(1, "--model", MODEL)
        cluster.ready(node)
        yield node


def complete(node: Node, prompt: Any, **body: Any) -> list[dict[str, Any]]:
    answer = node.post("/v1/completions", {"model": MODEL, "prompt": prompt, "temperature": 0, "seed": 1234, **body})
    assert answer.status == 200, answer.body
    return answer.json["choices"]


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_loglikelihoods_as_lm_eval_asks_for_them(node: Node, stock: list[dict[str, Any]], max_tokens: int) -> None:
    """A batch of token arrays. If one token is generated, it is left out."""
    choices = complete(node, [each["tokens"] for each in stock], echo=True, logprobs=1, max_tokens=max_tokens)
    for choice, expected in zip(choices, stock, strict=True):
        context = min(4, len(expected["tokens"]) - 1)
        end = -1 if max_tokens else None
        own = choice["logprobs"]["token_logprobs"][context:end]
        tops = choice["logprobs"]["top_logprobs"][context:end]
        assert own == pytest.approx(expected["logprobs"][context - 1 :], abs=1e-3)
        assert [max(top.values()) for top in tops] == pytest.approx(expected["likeliest"][context - 1 :], abs=1e-3)
        greedy = [logprob == max(top.values()) for logprob, top in zip(own, tops, strict=True)]
        assert greedy == expected["greedy"][context - 1 :]


def test_an_echoed_text_is_scored_and_gone_on_from(node: Node, stock: list[dict[str, Any]]) -> None:
    (plain,) = complete(node, TEXTS[0], max_tokens=8)
    (scored,) = complete(node, TEXTS[0], max_tokens=8, echo=True, logprobs=3)
    assert scored["text"] == TEXTS[0] + plain["text"]
    logprobs = scored["logprobs"]
    assert "".join(logprobs["tokens"]) == scored["text"]
    assert logprobs["token_logprobs"][0] is None
    count = len(stock[0]["tokens"])
    assert logprobs["token_logprobs"][1:count] == pytest.approx(stock[0]["logprobs"], abs=1e-3)
    assert len(logprobs["tokens"]) == count + 8
    assert all(a <= b for a, b in pairwise(logprobs["text_offset"]))


def test_what_was_generated_has_the_score_that_it_has_as_a_prompt(node: Node) -> None:
    (made,) = complete(node, TEXTS[3], max_tokens=12, echo=True, logprobs=0)
    (again,) = complete(node, made["text"], max_tokens=0, echo=True, logprobs=0)
    assert again["logprobs"]["tokens"] == made["logprobs"]["tokens"]
    assert again["logprobs"]["token_logprobs"][1:] == pytest.approx(made["logprobs"]["token_logprobs"][1:], abs=1e-3)


def test_best_of(node: Node) -> None:
    hot = {"temperature": 1.5, "max_tokens": 12, "logprobs": 0}
    choices = complete(node, "Once upon", n=6, **hot)
    (best,) = complete(node, "Once upon", n=1, best_of=6, **hot)

    def mean(choice: dict[str, Any]) -> float:
        values = choice["logprobs"]["token_logprobs"]
        return sum(values) / len(values)

    assert best["text"] == max(choices, key=mean)["text"]


def test_embeddings(node: Node, stock: list[dict[str, Any]]) -> None:
    with openai.OpenAI(base_url=f"{node.url}/v1", api_key="any", max_retries=0) as client:
        answer = client.embeddings.create(model=MODEL, input=TEXTS)
    assert [entry.index for entry in answer.data] == list(range(len(TEXTS)))
    for entry, expected in zip(answer.data, stock, strict=True):
        assert entry.embedding == pytest.approx(expected["embedding"], abs=1e-4)
    assert answer.usage.prompt_tokens == sum(len(each["tokens"]) for each in stock)
    body = {"model": MODEL, "input": stock[1]["tokens"], "encoding_format": "base64"}
    packed = base64.b64decode(node.post("/embeddings", body).json["data"][0]["embedding"])
    assert struct.unpack(f"<{len(packed) // 4}f", packed) == pytest.approx(stock[1]["embedding"], abs=1e-4)


def test_what_is_refused(node: Node) -> None:
    long = node.post("/v1/embeddings", {"model": MODEL, "input": [[300] * 100_000]})
    assert (long.status, long.error["code"]) == (400, "context_length_exceeded")
    unknown = node.post("/v1/embeddings", {"model": MODEL, "input": [[10**6]]})
    assert (unknown.status, unknown.error["param"]) == (400, "input")


def test_evaluations_outlive_a_node(cluster: Cluster, stock: list[dict[str, Any]]) -> None:
    nodes = cluster.start(3, "--model", MODEL, "--stages", "3")
    status = cluster.ready(*nodes, stages=3)
    gateway = cluster.head(status)
    victim = next(node for node in nodes if node is not gateway)
    many = [stock[3]["tokens"]] * 10
    with ThreadPoolExecutor(2) as threads:
        embedded = threads.submit(gateway.post, "/v1/embeddings", {"model": MODEL, "input": many})
        scored = threads.submit(complete, gateway, many[:6], echo=True, logprobs=1, max_tokens=0)
        until(lambda: gateway.running() > 1, "the texts are evaluated")
        victim.kill()
        entries, choices = embedded.result().json["data"], scored.result()
    assert len(entries) == len(many)
    for entry in entries:
        assert entry["embedding"] == pytest.approx(stock[3]["embedding"], abs=1e-4)
    for choice in choices:
        assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(stock[3]["logprobs"], abs=1e-3)
    until(lambda: gateway.running() == 0, "nothing is left over")
