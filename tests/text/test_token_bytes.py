"""The bytes of each token are what tokenizers decodes, for the kinds of tokenizers that have fixed bytes.

TOKENIZERS names a folder whose folders hold a tokenizer.json each, such as those of published models: they are compared, too.
"""

import json
import os
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from node.text.constraint import Constraints
from node.text.grammar import json_grammar
from node.text.tokenizer import BYTE_ALPHABET, Tokenizer

DEMO = Path(__file__).parents[2] / "node" / "builtin" / "pippin-demo"
REAL = (
    sorted(path.parent for path in Path(os.environ["TOKENIZERS"]).glob("*/tokenizer.json"))
    if "TOKENIZERS" in os.environ
    else []
)
CODE = "def f(n):\n    if n == 0:\n        return 1\n\n\t# é 日本 😀\n"


def sentencepiece(decoder: decoders.Decoder, *added: str) -> Backend:
    """▁ for blanks, byte fallback, and added tokens that are ordinary text, as Gemma 2 and 3 have runs of ▁."""
    names = ["<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += ["▁", "▁the", "n", "▁=", "é", "日", "▁a▁b", *added]
    backend = Backend(models.BPE({name: number for number, name in enumerate(names)}, [], byte_fallback=True))
    backend.decoder = decoder
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in ("<s>", "</s>", "▁<PRE>")])
    backend.add_tokens([AddedToken(name, normalized=False) for name in added])
    return backend


def byte_level(*added: str) -> Backend:
    names = [*BYTE_ALPHABET, "Ġthe", "ĠĠ", "Ã©", "æĹ", "<s>", "</s>"]
    backend = Backend(models.BPE({name: number for number, name in enumerate(names)}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in ("<s>", "</s>", "<｜end▁of▁text｜>")])
    backend.add_tokens([AddedToken(name, normalized=False) for name in added])
    return backend


REPLACE = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
RUNS = ["▁" * length for length in range(2, 32)]
SMALL = {
    "gemma": sentencepiece(decoders.Sequence(REPLACE), *RUNS, "\n\n", "<table>", "x▁y"),
    "llama 2": sentencepiece(decoders.Sequence([*REPLACE, decoders.Strip(" ", 1, 0)]), *RUNS),
    "metaspace": sentencepiece(decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]), *RUNS),
    "byte level": byte_level("  ", "ĠĠĠ", "é", "naïve x", "<｜tool▁call｜>", "日本", "\n\n"),
}


def write(backend: Backend, directory: Path) -> Path:
    backend.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(params=[*SMALL, "demo", *REAL], ids=str)
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    if request.param in SMALL:
        return Tokenizer(write(SMALL[request.param], tmp_path))
    return Tokenizer(DEMO if request.param == "demo" else request.param)


def test_all_tokens_have_the_bytes_that_tokenizers_decodes(tokenizer: Tokenizer) -> None:
    """Alone, and after a token that keeps decoders from stripping the blank of a text's first word."""
    assert tokenizer.has_fixed_bytes
    backend: Backend = tokenizer._hf.backend_tokenizer
    before = backend.token_to_id("n")
    tokens = [token for token in range(tokenizer.vocab_size) if backend.id_to_token(token) is not None]
    texts = [tokenizer.token_bytes(token).decode(errors="replace") for token in tokens]
    after = backend.decode_batch([[before, token] for token in tokens], skip_special_tokens=False)
    assert dict(zip(tokens, after, strict=True)) == dict(zip(tokens, ["n" + text for text in texts], strict=True))
    alone = backend.decode_batch([[token] for token in tokens], skip_special_tokens=False)
    for token, text, expected in zip(tokens, texts, alone, strict=True):
        stripped = (text.removeprefix(" "), text.replace(" ", ""))  # by Strip, and by Metaspace
        assert expected in (text, *stripped), (token, backend.id_to_token(token))


def test_indented_code_streams_as_tokenizers_decodes_it(tokenizer: Tokenizer) -> None:
    backend: Backend = tokenizer._hf.backend_tokenizer
    runs = [token for run in RUNS if (token := backend.token_to_id(run)) is not None and len(run) in (4, 8)]
    tokens = [
        *backend.encode(CODE, add_special_tokens=False).ids,
        *runs,
        *backend.encode("if", add_special_tokens=False).ids,
    ]
    detokenizer = tokenizer.detokenizer()
    text = "".join(detokenizer.add(token) for token in tokens)
    assert text.lstrip(" ") == backend.decode(tokens).lstrip(" ")


def test_a_grammar_takes_a_run_of_blanks_for_blanks(tmp_path: Path) -> None:
    backend = SMALL["gemma"]
    folder = write(backend, tmp_path)
    constraints = Constraints(folder, backend.get_vocab_size())
    constraints.read(folder)
    grammar = json_grammar({"type": "string", "pattern": "^a *b$"}, strict=False, param="response_format")
    begun = [backend.token_to_id(name) for name in ("<0x22>", "<0x61>")]
    mask = constraints.begin(grammar).allowed(begun)
    assert mask
    allowed = {token for token in range(backend.get_vocab_size()) if mask[token // 8] >> token % 8 & 1}
    names = {backend.id_to_token(token) for token in allowed}
    assert names == {"▁", "<0x20>", "<0x62>", *RUNS}
