"""Reads tokenizers of hostile folders as a sandbox does, but without its second wall, and tells what was opened.

    python -m tests.text.hostile_folders FOLDER [RAW]

A process of its own, as an audit hook stays. It writes in the folder, and prints JSON: the numbers of folders, tokenizers and
classes, the paths opened elsewhere, and the folders whose tokenizers told the secret. RAW leaves the copies as they came.
"""

import importlib
import inspect
import json
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sentencepiece
import transformers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from node.text.tokenizer_files import copy
from node.text.tokenizer_settings import clean
from tests.opened import Opened

SECRET = "-----BEGIN KEY-----"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<unk>", "<pad>", "<mask>", "a", "b", "ab"]
WORD_PIECE = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
FILES = ("vocab", "vocab_file", "merges", "merges_file", "tokenizer_file", "spm_file", "sp_model_kwargs", "gguf_file")
OTHERS = ("name_or_path", "init_inputs", "fast_tokenizer_files", "auto_map", "tokenizer_object", "chat_template_file")


def classes() -> list[type[PreTrainedTokenizerBase]]:
    found = []
    for file in sorted(Path(transformers.__file__).parent.glob("models/*/tokenization_*.py")):
        name = ".".join(("transformers.models", *file.with_suffix("").parts[-2:]))
        try:
            module = importlib.import_module(name)
        except (ImportError, NameError):  # it needs a package that is no part of a node
            continue
        found += [each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == name]
    return [each for each in found if issubclass(each, PreTrainedTokenizerBase)]


def settings(secret: str) -> Iterator[dict[str, Any]]:
    """For each class and each of its arguments that may be a path, settings in which it is the path of the secret."""
    for each in classes():
        names = {name for name in inspect.signature(each.__init__).parameters if not name.endswith("_token")}
        for name in sorted((names | set(FILES)) - {"self", "args", "kwargs"}):
            value = {"model_file": secret} if name == "sp_model_kwargs" else secret
            yield {"tokenizer_class": each.__name__, "unk_token": SECRET, name: value}
    for name in OTHERS:
        for value in (secret, [secret], [None, secret], {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}):
            yield {"tokenizer_class": "BertTokenizer", name: value, "trust_remote_code": True}


def vocabularies(secret: str) -> Iterator[tuple[str, Any]]:
    """Files that hold a path, or the number of an open file, where a vocabulary belongs."""
    for value in (secret, 0, [secret], {"a": secret}):
        for kind in ("BPE", "WordPiece", "WordLevel", "Unigram"):
            model = {"type": kind, "vocab": value, "merges": [], "unk_token": WORDS[1]} | WORD_PIECE
            yield "tokenizer.json", {"version": "1.0", "added_tokens": [], "model": model}
        yield "vocab.json", value
        yield "tekken.json", value


def write(folder: Path, model: bytes, name: str | None, content: Any) -> None:
    """Write a model's files: with these settings, or with this content of another file. `model`: of SentencePiece."""
    settings = {"tokenizer_class": "BertTokenizer"} if name else content
    for file, value in {
        "config.json": {"model_type": "bert", "model_file": "evil.py"},
        "tokenizer_config.json": settings,
        "special_tokens_map.json": settings,
    }.items():
        (folder / file).write_text(json.dumps(value))
    if not model:
        return
    for file in ("tokenizer.json", "tekken.json"):
        (folder / file).unlink(missing_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(WORDS)}))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    for file in ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model"):
        (folder / file).write_bytes(model)
    if name:
        (folder / name).write_text(json.dumps(content))


class Watch:
    """Tells what Python code opens outside of some folders, by an audit hook."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self.opened: set[str] = set()
        self.is_on = False
        self._allowed = allowed
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        watched = self.is_on and event in {"open", "os.listdir", "os.scandir", "subprocess.Popen", "socket.connect"}
        if watched and not str(args[0]).startswith(self._allowed):
            self.opened.add(f"{event} {args[0]}")


def main(folder: Path, raw: bool) -> None:
    secret = folder / "elsewhere" / "secret"
    secret.parent.mkdir()
    lines = [SECRET, "cHJpdmF0ZQ==", "-----END KEY-----"]
    secret.write_text("\n".join(lines))
    noticed = Opened(secret)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b ab " * 9] * 20), model_prefix=str(folder / "sp"), vocab_size=8, minloglevel=9
    )
    own, private, few = folder / "model", folder / "private", folder / "few"
    own.mkdir()
    few.mkdir()
    code = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    watch = Watch((str(private), str(few), *code, "/proc/self", "/dev/null"))
    told: set[str] = set()
    cleaned: set[bytes] = set()
    names: set[str] = set()
    count = read = 0

    def load() -> str:
        """What the tokenizer of the copy tells."""
        if not raw:
            clean(private)
        tokenizer = AutoTokenizer.from_pretrained(private)
        names.add(type(tokenizer).__name__)
        return "".join(map(str, tokenizer.get_vocab())) + tokenizer.decode(range(len(tokenizer)))

    cases = [(None, each) for each in settings(str(secret)) if not raw or each["tokenizer_class"] == "BertTokenizer"]
    for name, content in (*cases, *vocabularies(str(secret))):
        count += 1
        write(own, (folder / "sp.model").read_bytes(), name, content)
        watch.is_on = True
        try:
            if name is None and not raw:
                write(few, b"", None, content)
                clean(few)
                left = (few / "tokenizer_config.json").read_bytes() + (few / "special_tokens_map.json").read_bytes()
                if left in cleaned:
                    continue  # what it was made of makes no difference any more
                cleaned.add(left)
            watch.is_on = False
            shutil.rmtree(private, ignore_errors=True)
            copy(own, private)
            watch.is_on = True
            seen = load()
            read += 1
        except BaseException as error:  # noqa: BLE001 - a panic, too
            seen = str(error)
        finally:
            watch.is_on = False
        if any(line in seen for line in lines[1:]):
            told.add(f"{name or 'tokenizer_config.json'} {content}")
    found = {"count": count, "read": read, "classes": len(names), "noticed": bool(noticed)}
    json.dump({**found, "opened": sorted(watch.opened), "told": sorted(told)}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), raw="RAW" in sys.argv)
