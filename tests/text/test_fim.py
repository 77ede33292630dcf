"""Prompts for the text between two others, in the order and with the marks of each family."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from node.text.fim import names_marks
from node.text.tokenizer import Tokenizer
from tests.text.test_tokenizer import CORPUS, DEMO, sentencepiece

FAMILIES = {
    "qwen": (("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|file_sep|>"), "012", False),
    "starcoder": (("<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<file_sep>"), "012", False),
    "deepseek": (("<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜fim▁hole｜>"), "012", True),
    "seed": (("<[fim-prefix]>", "<[fim-middle]>", "<[fim-suffix]>"), "suffix first", False),
    "codestral": (("[PREFIX]", "[MIDDLE]", "[SUFFIX]"), "no middle", True),
}
"""The marks of prefix, middle and suffix, and further ends; their order; whether the tokenizer adds BOS."""


def make(directory: Path, added: tuple[str, ...], bos: bool) -> Tokenizer:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    backend.add_special_tokens(["<s>", "</s>"])
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    if bos:
        start = backend.token_to_id("<s>")
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", start)])
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(directory)
    return Tokenizer(directory)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_its_order(tmp_path: Path, family: str) -> None:
    added, order, bos = FAMILIES[family]
    tokenizer = make(tmp_path, added, bos)
    prefix, middle, suffix, *_ = [tokenizer.encode(text, bos=False)[0] for text in added]
    before, after = (tokenizer.encode(text, bos=False) for text in ("def f(", "  return 1\n"))
    expected = {
        "012": [prefix, *before, suffix, *after, middle],
        "suffix first": [suffix, *after, prefix, *before, middle],
        "no middle": [suffix, *after, prefix, *before],
    }[order]
    made = tokenizer.encode_fim("def f(", "  return 1\n")
    assert made == ([tokenizer.bos] if bos else []) + expected
    assert tokenizer.fim
    ends = {tokenizer.encode(text, bos=False)[0] for text in added}
    assert tokenizer.fim.ends == ends
    assert names_marks(tmp_path)


def test_marks_that_a_user_typed_are_text(tmp_path: Path) -> None:
    tokenizer = make(tmp_path, FAMILIES["qwen"][0], bos=False)
    assert tokenizer.fim
    made = tokenizer.encode_fim("a <|fim_middle|> b", "<|fim_suffix|>")
    assert [token for token in made if token in tokenizer.fim.marks] == [
        part for part in tokenizer.fim.parts if isinstance(part, int)
    ]
    assert "<|fim_middle|>" in tokenizer.spell(made[1:-1])
    assert tokenizer.encode_fim("", "")[0] == made[0]


def test_the_suffix_gets_no_blank_that_begins_a_text(tmp_path: Path) -> None:
    """As Code Llama was trained: its tokenizer puts a blank before the prefix only."""
    backend = sentencepiece("first")
    backend.add_special_tokens(["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"])
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>").save_pretrained(tmp_path)
    tokenizer = Tokenizer(tmp_path)
    made = tokenizer.encode_fim("the quick", "the lazy")
    pre, suf, mid, eot = (backend.token_to_id(text) for text in ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"))
    assert made[:2] == [tokenizer.bos, pre]
    assert made[-1] == mid
    middle = made.index(suf)
    assert b"".join(map(tokenizer.token_bytes, made[2:middle])) == b" the quick"
    assert b"".join(map(tokenizer.token_bytes, made[middle + 1 : -1])) == b"the lazy"
    assert tokenizer.fim
    assert tokenizer.fim.ends == {pre, suf, mid, eot}


def test_other_models_have_no_form(tmp_path: Path) -> None:
    assert Tokenizer(DEMO).fim is None
    assert not names_marks(DEMO)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"x": "<|fim_prefix|>", "y": "<|fim_suffix|>"}))
    assert not names_marks(tmp_path)
