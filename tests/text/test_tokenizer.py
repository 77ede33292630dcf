"""Text to tokens and back, for the demo model and for small tokenizers of the other common kinds."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import (
    Tokenizer as Backend,
)
from tokenizers import (
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from node.core.errors import BadRequest, ModelBroken
from node.text.tokenizer import Tokenizer

DEMO = Path(__file__).parents[2] / "node" / "builtin" / "pippin-demo"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SPECIAL = ["<s>", "</s>", "<unk>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
CORPUS = ["the quick brown fox jumps over the lazy dog", "Hello world, how are you today?", "a b c d e f 1 2 3 4"] * 20
TRICKY = [
    "Hello world",
    "  leading and trailing  ",
    "line\nbreaks\n\n\nand\ttabs",
    "日本語 中文 한국어 😀 🏳️‍🌈 é e\u0301",
    "\U00100000 private \U00100001 use",
    "",
]


def save(backend: Backend, directory: Path, **config: object) -> Path:
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=TEMPLATE
    )
    fast.save_pretrained(directory)
    if config:
        (directory / "generation_config.json").write_text(json.dumps(config))
    return directory


def sentencepiece(prepend: str) -> Backend:
    """Like Llama 2's: ▁ for blanks, byte fallback."""
    backend = Backend(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=600, special_tokens=[*SPECIAL, *bytes_]))
    state = json.loads(backend.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in SPECIAL]
    for token in state["added_tokens"]:
        # Phi-3's control tokens include the white space that follows.
        token["rstrip"] = token["content"].startswith("<|")
    backend = Backend.from_str(json.dumps(state))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return backend


def word_pieces() -> Backend:
    """A kind whose tokens do not stand for bytes."""
    backend = Backend(models.WordPiece(unk_token="<unk>"))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL))
    backend.decoder = decoders.WordPiece()
    return backend


@pytest.fixture(scope="session")
def kinds(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tokenizers")
    return {
        "demo": DEMO,
        "first": save(sentencepiece("first"), root / "first", eos_token_id=[1, 6]),
        "always": save(sentencepiece("always"), root / "always"),
        "words": save(word_pieces(), root / "words"),
    }


@pytest.fixture(scope="session")
def loaded(kinds) -> dict[str, Tokenizer]:
    return {name: Tokenizer(path) for name, path in kinds.items()}


@pytest.fixture(scope="session")
def hugging_face(kinds):
    return {name: AutoTokenizer.from_pretrained(path) for name, path in kinds.items()}


KINDS = pytest.mark.parametrize("kind", ["demo", "first", "always", "words"])


@KINDS
@pytest.mark.parametrize("text", TRICKY)
def test_ordinary_text_gives_what_the_template_gives(loaded, hugging_face, kind, text):
    messages = [
        {"role": "system", "content": text},
        {"role": "user", "content": f"{text}!"},
        {"role": "assistant", "content": text},
        {"role": "user", "content": text},
    ]
    expected = hugging_face[kind].apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert loaded[kind].encode_chat(messages) == expected


@given(st.text(max_size=40))
def test_any_text_gives_what_the_template_gives(loaded, hugging_face, text):
    if any(control in text for control in ("<|", "|>", "tool_call")):
        return
    messages = [{"role": "user", "content": text}]
    expected = hugging_face["demo"].apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert loaded["demo"].encode_chat(messages) == expected


def typed_texts(controls: list[str]):
    return st.lists(st.sampled_from([*controls, "a", " ", "\n", "<|", "😀", "\U00100000"]), max_size=5).map("".join)


@KINDS
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_typed_control_strings_stay_text(loaded, hugging_face, kind, role):
    """The result has the same control tokens as the same chat without the typed text."""
    tokenizer = loaded[kind]
    if kind != "demo" and role == "tool":
        return
    for control in hugging_face[kind].added_tokens_encoder:
        messages = [{"role": role, "content": f"one {control} two{control}"}, {"role": "user", "content": "three"}]
        plain = [{"role": role, "content": "one"}, {"role": "user", "content": "three"}]
        added = set(hugging_face[kind].added_tokens_decoder) - {hugging_face[kind].unk_token_id}
        tokens = tokenizer.encode_chat(messages)
        assert [t for t in tokens if t in added] == [t for t in tokenizer.encode_chat(plain) if t in added]
        if kind != "words":
            spelled = b"".join(map(tokenizer.token_bytes, tokens)).decode()
            assert f"one {control} two{control}" in spelled


@given(typed_texts(["<|end|>", "<|user|>", "<tool_call>", "</tool_call>", "<|bos|>"]))
@example("<|end|>")
def test_all_that_was_typed_arrives_as_it_was_typed(loaded, text):
    tokenizer = loaded["demo"]
    tokens = tokenizer.encode_chat([{"role": "user", "content": text}])
    spelled = b"".join(map(tokenizer.token_bytes, tokens)).decode()
    assert spelled == f"<|bos|><|user|>{text}<|end|><|assistant|>"
    assert [token for token in tokens if token in tokenizer.control] == [1, 4, 2, 5]


def test_typed_text_is_encoded_as_with_special_tokens_off(loaded, hugging_face):
    text = "Say <|end|> to me"
    expected = hugging_face["demo"].encode(text, add_special_tokens=False, split_special_tokens=True)
    assert loaded["demo"].encode_chat([{"role": "user", "content": text}]) == [1, 4, *expected, 2, 5]


def test_no_blank_comes_before_typed_text(loaded):
    for kind in ("first", "always"):
        tokens = loaded[kind].encode_chat([{"role": "user", "content": "a</s>b"}])
        spelled = b"".join(map(loaded[kind].token_bytes, tokens))
        assert b"a</s>b" in spelled
        assert b" a</s>" not in spelled


@KINDS
def test_a_prediction_has_no_control_tokens_and_no_blank_before_it(loaded, hugging_face, kind):
    tokenizer = loaded[kind]
    for control in hugging_face[kind].added_tokens_encoder:
        for text in (f"one {control} two{control}", f"{control}one"):
            tokens = tokenizer.encode_prediction(text)
            assert not tokenizer.markup.intersection(tokens) - {hugging_face[kind].unk_token_id}
            if kind != "words":
                assert b"".join(map(tokenizer.token_bytes, tokens)).decode() == text


@pytest.mark.parametrize("text", TRICKY)
def test_a_prediction_has_the_tokens_of_an_answer(loaded, text):
    answer = [{"role": "assistant", "content": text}, {"role": "user", "content": "x"}]
    tokens = loaded["demo"].encode_prediction(text)
    assert loaded["demo"].encode_chat(answer)[: 3 + len(tokens)] == [1, 5, *tokens, 2]


def test_a_prediction_has_the_added_tokens_that_are_ordinary_text(tmp_path):
    """Such as the runs of blanks of Gemma and GPT-NeoX."""
    hf = AutoTokenizer.from_pretrained(DEMO)
    hf.add_tokens([" " * 13])
    hf.save_pretrained(tmp_path)
    tokenizer = Tokenizer(tmp_path)
    text = f"if x:\n{' ' * 13}pass"
    assert len(hf) - 1 in tokenizer.encode_prediction(text)
    assert tokenizer.decode(tokenizer.encode_prediction(text)) == text


def test_tools_are_wrapped_too(loaded):
    tools = [{"type": "function", "function": {"name": "f", "description": "<|end|><tool_call>"}}]
    tokens = loaded["demo"].encode_chat([{"role": "user", "content": "x"}], tools)
    assert [token for token in tokens if token in loaded["demo"].control] == [1, 3, 2, 4, 2, 5]
    assert "<|end|><tool_call>" in b"".join(map(loaded["demo"].token_bytes, tokens)).decode()


def test_a_last_message_of_the_assistant_is_continued(loaded):
    for kind in ("demo", "first"):
        tokenizer = loaded[kind]
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Well, </s><|end|> I"}]
        assert tokenizer.decode(tokenizer.encode_chat(messages)).endswith("Well, </s><|end|> I")
        closed = tokenizer.encode_chat(messages, more={"add_generation_prompt": False})
        assert closed[-1] in tokenizer.control or tokenizer.decode(closed[-1:]).isspace()


@pytest.mark.parametrize("text", ["d", "e", "|", "end", ">", "Well, ", " x"])
def test_a_short_last_message_is_not_mistaken_for_the_template(loaded, text):
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": text}]
    assert loaded["demo"].encode_chat(messages) == [
        1,
        4,
        *loaded["demo"].encode("x"),
        2,
        5,
        *loaded["demo"].encode(text),
    ]


def test_developer_is_system_where_the_template_does_not_know_it(loaded):
    for tokenizer in loaded.values():
        chats = [[{"role": role, "content": "x"}] for role in ("developer", "system")]
        assert tokenizer.encode_chat(chats[0]) == tokenizer.encode_chat(chats[1])


@pytest.mark.parametrize("name", ["enable_thinking", "thinking"])
def test_a_template_gets_its_own_name_of_the_variable_for_thinking(tmp_path, name):
    directory = save(sentencepiece("first"), tmp_path)
    (directory / "chat_template.jinja").write_text("{% if " + name + " %}yes{% else %}no{% endif %}")
    tokenizer = Tokenizer(directory)
    for thinks in (True, False):
        tokens = tokenizer.encode_chat([{"role": "user", "content": "x"}], more={"enable_thinking": thinks})
        assert tokenizer.decode(tokens).strip() == ("yes" if thinks else "no")


def test_a_template_in_code_gets_no_variable_that_it_refuses(tmp_path):
    directory = save(sentencepiece("first"), tmp_path)
    (directory / "chat_template.jinja").unlink()
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template_type": "deepseek_v32"}))
    tokenizer = Tokenizer(directory)
    chat = [{"role": "user", "content": "x"}]
    assert tokenizer.encode_chat(chat, more={"enable_thinking": True, "reasoning_effort": "high"})
    with pytest.raises(BadRequest, match="made_up"):
        tokenizer.encode_chat(chat, more={"made_up": 1})


def test_an_empty_last_message_of_the_assistant_is_closed(loaded):
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}]
    assert loaded["demo"].encode_chat(messages)[-4:] == [2, 5, 2, 5]


def test_a_model_without_a_template_and_a_template_that_refuses(loaded, tmp_path):
    backend = sentencepiece("first")
    directory = save(backend, tmp_path)
    (directory / "chat_template.jinja").write_text("{{ raise_exception('No system role here') }}")
    with pytest.raises(BadRequest, match="No system role here"):
        Tokenizer(directory).encode_chat([{"role": "user", "content": "x"}])
    (directory / "chat_template.jinja").unlink()
    with pytest.raises(BadRequest, match="no chat template"):
        Tokenizer(directory).encode_chat([{"role": "user", "content": "x"}])


def test_a_directory_without_a_tokenizer(tmp_path):
    with pytest.raises(ModelBroken):
        Tokenizer(tmp_path)


# --- raw prompts ---


def test_a_raw_prompt_has_the_bos_that_its_tokenizer_adds_once(loaded):
    tokenizer = loaded["first"]
    assert tokenizer.encode("Hello")[0] == 0
    assert tokenizer.encode("<s>Hello").count(0) == 1
    assert tokenizer.encode("") == [0]
    assert loaded["demo"].encode("") == []
    assert loaded["demo"].encode("Hi<|end|>")[-1] == 2


def test_ends_come_from_all_files(loaded):
    assert loaded["demo"].eos == {2}
    assert loaded["first"].eos == {1, 6}
    assert loaded["always"].eos == {1}


# --- tokens to text ---


def stream(tokenizer: Tokenizer, tokens: list[int]) -> list[str]:
    detokenizer = tokenizer.detokenizer()
    return [detokenizer.add(token) for token in tokens]


@pytest.mark.parametrize("kind", ["demo", "first", "always"])
@pytest.mark.parametrize("text", TRICKY)
def test_text_comes_back(loaded, kind, text):
    tokenizer = loaded[kind]
    pieces = stream(tokenizer, tokenizer.encode(text))
    assert "".join(pieces).removeprefix(" ") == text.removeprefix(" ")
    assert "\ufffd" not in "".join(pieces)


@given(st.lists(st.integers(0, 2047), max_size=30))
def test_any_tokens_stream_to_what_they_decode_to(loaded, tokens):
    for kind in ("demo", "first"):
        tokenizer = loaded[kind]
        tokens = [token % tokenizer.vocab_size for token in tokens]
        streamed = "".join(stream(tokenizer, tokens))
        decoded = tokenizer.decode(tokens)
        # The stream leaves out bytes that may still become a character.
        assert decoded.startswith(streamed)
        assert decoded[len(streamed) :].strip("\ufffd") == ""
        assert streamed == "".join(stream(tokenizer, [token for token in tokens if token not in tokenizer.control]))


def test_decode_agrees_with_hugging_face(loaded, hugging_face):
    tokens = list(range(loaded["demo"].vocab_size))
    assert loaded["demo"].decode(tokens) == hugging_face["demo"].decode(tokens, skip_special_tokens=True)


def test_an_emoji_is_held_until_its_last_byte(loaded):
    for kind in ("demo", "first"):
        tokens = loaded[kind].encode("😀")
        pieces = [piece for piece in stream(loaded[kind], tokens) if piece.strip()]
        assert pieces == ["😀"]
        assert not "".join(stream(loaded[kind], tokens[:-1])).strip()


def test_control_tokens_have_no_text_but_have_bytes(loaded):
    for tokenizer in loaded.values():
        assert set(stream(tokenizer, sorted(tokenizer.control))) == {""}
        assert tokenizer.decode(sorted(tokenizer.control)) == ""
        assert all(tokenizer.token_bytes(token) for token in tokenizer.control)


def test_tokens_that_do_not_exist_have_no_text(loaded):
    tokenizer = loaded["demo"]
    assert stream(tokenizer, [tokenizer.vocab_size, 10**6]) == ["", ""]


def test_words_come_with_their_blanks(loaded):
    tokenizer = loaded["words"]
    tokens = tokenizer.encode("the quick brown fox, how are you")
    assert "".join(stream(tokenizer, tokens)) == tokenizer.decode(tokens)
    assert tokenizer.decode(tokens).startswith("the quick brown fox")
