"""Rerankers: the prompt of their card, the order of the results, and what is refused."""

import pytest

from node.text.reranking import BEGIN, END, Judgement, is_reranker, question

RERANKER = "someone/Qwen3-Reranker-0.6B-8bit"
YES, NO = 300, 301


@pytest.fixture
def reranker(server, monkeypatch):
    model = server.backend.model
    model.id = RERANKER
    monkeypatch.setattr(model.tokenizer, "judgement", Judgement(YES, NO))
    return server


async def rerank(server, *documents, path="/v1/rerank", query="Who?", **body):
    return await server.post(path, {"model": RERANKER, "query": query, "documents": documents, **body})


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
async def test_results_are_ordered_by_score(reranker, path):
    answer = (await rerank(reranker, "Me", {"text": "It was somebody else."}, "You and I", path=path)).json
    prompts = [list(each.prompt) for each in reranker.backend.evaluated]
    assert answer["results"] == [
        {"index": index, "relevance_score": len(prompts[index]) / 4096, "document": {"text": text}}
        for index, text in ((1, "It was somebody else."), (2, "You and I"), (0, "Me"))
    ]
    tokens = sum(map(len, prompts))
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert answer["meta"] == {"tokens": {"input_tokens": tokens}}
    assert answer["model"] == RERANKER
    assert {each.among for each in reranker.backend.evaluated} == {(YES, NO)}


async def test_the_prompt_is_that_of_the_models_card(reranker):
    await rerank(reranker, "Me", query="Who <|end|>?")
    await rerank(reranker, "Me", instruction="Find the culprit")
    tokenizer = reranker.backend.model.tokenizer
    plain, told = (list(each.prompt) for each in reranker.backend.evaluated)
    assert tokenizer.spell(told) == f"{BEGIN}<Instruct>: Find the culprit\n<Query>: Who?\n<Document>: Me{END}"
    assert "Given a web search query, retrieve relevant passages" in tokenizer.spell(plain)
    assert "<|end|>" in tokenizer.spell(plain)
    assert not set(plain) & tokenizer.control, "what users type are no control tokens"


async def test_some_of_them(reranker):
    (best,) = (await rerank(reranker, "Me", "It was I", top_n=1, return_documents=False)).json["results"]
    assert set(best) == {"index", "relevance_score"}
    assert best["index"] == 1


async def test_a_document_beyond_the_context(reranker):
    model = reranker.backend.model
    model.context = 400
    long = "so long, " * 400
    refused = await rerank(reranker, "Me", long)
    assert (refused.status, refused.error["code"], refused.error["param"]) == (
        400,
        "context_length_exceeded",
        "documents",
    )
    assert "document 1" in refused.error["message"]
    assert (await rerank(reranker, "Me", long, truncate=True)).status == 200
    short, cut = (list(each.prompt) for each in reranker.backend.evaluated)
    assert len(short) < len(cut) == 400
    assert model.tokenizer.spell(cut).endswith(END)
    hopeless = await rerank(reranker, "Me", query=long, truncate=True)
    assert (hopeless.status, hopeless.error["param"]) == (400, "query")


async def test_other_models_are_refused_by_name(server, monkeypatch):
    for judgement in (None, Judgement(YES, NO)):
        monkeypatch.setattr(server.backend.model.tokenizer, "judgement", judgement)
        refused = await rerank(server, "Me", model="pippin/demo")
        assert (refused.status, refused.error["code"]) == (400, "model_unsupported")
        assert "pippin/demo is no reranker" in refused.error["message"]
        assert "Qwen3-Reranker" in refused.error["message"]
    assert not server.backend.evaluated


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"documents": []}, "documents"),
        ({"documents": [{"image": "x"}]}, "documents[0]"),
        ({"documents": ["x"] * 2049}, "documents"),
        ({"query": 3}, "query"),
        ({"query": None}, "query"),
        ({"top_n": 0}, "top_n"),
        ({"truncate": "yes"}, "truncate"),
        ({"return_documents": 1}, "return_documents"),
        ({"instruction": ["x"]}, "instruction"),
    ],
)
async def test_bad_values_are_refused_by_name(reranker, wrong, param):
    refused = await rerank(reranker, "Me", **wrong)
    assert (refused.status, refused.error["param"]) == (400, param)


def test_which_models_are_rerankers():
    assert is_reranker("Qwen/Qwen3-Reranker-0.6B", {})
    assert is_reranker("mlx-community/Qwen3-Reranker-4B-mxfp8", {})
    assert is_reranker("mine", {"classifier_from_token": ["no", "yes"]})
    assert not is_reranker("Qwen/Qwen3-0.6B", {})
    assert not is_reranker("jinaai/jina-reranker-v3", {})
    marks = {"yes": 1, "no": 2, "<|im_start|>": 3, "<|im_end|>": 4}
    assert Judgement.of(marks) == Judgement(1, 2)
    assert Judgement.of({"yes": 1, "no": 2}) is None


def test_the_words_of_the_card():
    assert question("q", "d", "i") == "<Instruct>: i\n<Query>: q\n<Document>: d"
