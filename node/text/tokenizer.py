"""Text to tokens and back, for one model. The gateway's only view of what mlx-lm and transformers know of text."""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from mlx_lm import tokenizer_utils

from node.core.errors import ModelBroken
from node.model.config import check_small
from node.text.dialect import Dialect
from node.text.encoder import Encoder, panics_as_errors
from node.text.template import ControlString

Symbol = str | int
"""A character, or the id of a control token."""


class Detokenizer(Protocol):
    """Text that grows token by token. A character is given out when its last byte is there, and never before."""

    def add(self, token: int) -> str:
        """The text that this token completes; empty for a control token."""


class Tokenizer(Encoder):
    """A model's tokenizer and chat template, from its directory. Safe to use from several threads.

    The files may be a stranger's: have a sandbox read them first, see `node.text.sandboxed_encoder`, as some take all memory.
    """

    def __init__(self, directory: Path) -> None:
        try:
            self._read(directory)
        except ModelBroken:
            raise
        except BaseException as error:  # tokenizers raises bare Exceptions, and panics that are none
            said = f"{type(error).__name__}: {error}"[:500]
            raise ModelBroken(f"The tokenizer in {directory.name} can't be read: {said}") from error

    def _read(self, directory: Path) -> None:
        wrapper = tokenizer_utils.load(directory)
        named_ends = _eos_ids(directory)
        # The wrapper would set `enable_thinking` where the template's own default should stand.
        hf = wrapper._tokenizer  # noqa: SLF001
        in_python = hf.chat_template is None or "chat_template_type" in hf.init_kwargs
        self.dialect = Dialect.of(wrapper)
        added = hf.added_tokens_decoder
        markers = [marker for edges in self.dialect.turns.values() for marker, _ in edges]
        written = [*markers, *([hf.chat_template] if isinstance(hf.chat_template, str) else ())]
        self.eos = named_ends | ({hf.eos_token_id} - {None})
        """Tokens that end an answer."""
        self.control = self.eos | {token for token, entry in added.items() if entry.special}
        """Tokens whose text is never shown."""
        self.markup = self.control | {token for token, entry in added.items() if _is_markup(entry.content, written)}
        """Tokens that templates are made of: the control tokens, and others such as <tool_call>, whose text is shown."""
        self.control_strings = [
            ControlString(entry.content, entry.lstrip, entry.rstrip)
            for token, entry in added.items()
            if token in self.markup
        ]
        super().__init__(hf, wrapper if in_python and wrapper.has_chat_template else hf, self.control_strings)
        self.in_python = self._renderer is wrapper
        """Whether its chat template is no text of the model's, but code of mlx-lm's."""
        self._added = {token: entry.content.encode() for token, entry in added.items()}
        self._to_bytes = _byte_reader(hf)
        self._bytes: dict[int, bytes] = {}
        self.vocab_size = len(hf)
        self.spells = self._to_bytes is not None
        """Whether the text of an answer is the bytes of its tokens, joined."""
        self.start: int | None = hf.eos_token_id if self.bos is None else self.bos
        """What a text without any words begins with."""
        self.longest = max(map(len, hf.get_vocab()), default=1)
        """Characters that a token stands for, at most."""

    def symbols(self, text: str) -> list[Symbol]:
        """A marker as it comes in an answer: the characters of text, and the ids of the control tokens within it."""
        controls = {self.token_bytes(token).decode(errors="replace"): token for token in self.control}
        longest_first = sorted(filter(None, controls), key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first)) or "(?!)"
        pieces = re.split(f"({pattern})", text)
        return [symbol for piece in pieces for symbol in ([controls[piece]] if piece in controls else piece)]

    def token_bytes(self, token: int) -> bytes:
        """What the token stands for, also if it is a control token; a part of a character may be all there is."""
        if token not in self._bytes:
            self._bytes[token] = self._added[token] if token in self._added else self._read_bytes(token)
        return self._bytes[token]

    def _read_bytes(self, token: int) -> bytes:
        # Models often have more rows than their tokenizer has tokens: those stand for nothing.
        name = self._hf.convert_ids_to_tokens(token) if 0 <= token < self.vocab_size else None
        if name is None:
            return b""
        if self._to_bytes is None:
            with self._lock, panics_as_errors():
                text: str = self._hf.decode([token])
            return text.encode()
        return self._to_bytes(name)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a whole sequence, without control tokens."""
        shown = [token for token in tokens if token not in self.control]
        if self._to_bytes is None:
            with self._lock, panics_as_errors():
                text: str = self._hf.decode(shown, clean_up_tokenization_spaces=False)
            return text
        return b"".join(map(self.token_bytes, shown)).decode("utf-8", "replace")

    def detokenizer(self) -> Detokenizer:
        return _WindowDetokenizer(self) if self._to_bytes is None else _ByteDetokenizer(self)


class _ByteDetokenizer:
    """For tokens that are byte strings: byte-level BPE, and SentencePiece with byte fallback."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        if token in self._tokenizer.control:
            return ""
        return self._utf8.decode(self._tokenizer.token_bytes(token))


class _WindowDetokenizer:
    """For tokens whose text depends on their neighbours: decodes a short window with and without the newest tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._given = 0
        """How many tokens of the window have been given out; they are kept as the neighbours of what follows."""

    def add(self, token: int) -> str:
        if token in self._tokenizer.control:
            return ""
        self._window.append(token)
        before = self._tokenizer.decode(self._window[: self._given])
        text = self._tokenizer.decode(self._window)
        if len(text) <= len(before) or text.endswith("\ufffd"):
            return ""
        self._window = self._window[self._given :]
        self._given = len(self._window)
        return text[len(before) :]


def _is_markup(text: str, written: Iterable[str]) -> bool:
    """Whether an added token that is not called special is a piece of the template (Qwen's <tool_call>) or a marker.

    Others are ordinary text, such as the runs of blanks and the HTML tags of Gemma.
    """
    return not text.isspace() and any(text in each for each in written)


def _eos_ids(directory: Path) -> frozenset[int]:
    """The ends of an answer that the model's own files name; chat models often have more than the tokenizer knows."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        check_small(path)
        config = json.loads(path.read_text("utf-8")) if path.exists() else {}
        for part in (config, config.get("text_config") or {}):
            eos = part.get("eos_token_id")
            found |= {eos} if isinstance(eos, int) else set(eos or ())
    if not all(isinstance(token, int) for token in found):
        raise ValueError(f"{found!r:.100} are no tokens")
    return frozenset(found)


def _byte_reader(hf: Any) -> Callable[[str], bytes] | None:
    """How a token's name spells its bytes, if the tokenizer's decoder is one of the two common kinds."""
    backend = getattr(hf, "backend_tokenizer", None)
    if backend is None or backend.decoder is None:
        return None
    decoder = json.loads(backend.decoder.__getstate__())
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = {step["type"] for step in steps}
    if kinds == {"ByteLevel"}:
        return _read_byte_level
    # "Strip" takes the blank before a text's first word, which belongs to an answer as much as any other.
    blanks = all(step.get("pattern") == {"String": "▁"} for step in steps if step["type"] == "Replace")
    if (
        blanks
        and kinds & {"Replace", "Metaspace"}
        and kinds <= {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"}
    ):
        return _read_sentencepiece
    return None


def _read_sentencepiece(name: str) -> bytes:
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes.fromhex(name[3:5])
    return name.replace("▁", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's way to write bytes as visible characters: printable ones stand for themselves, others follow U+0100."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + index): byte for index, byte in enumerate(hidden)}


BYTE_ALPHABET = _byte_alphabet()


def _read_byte_level(name: str) -> bytes:
    return b"".join(bytes([BYTE_ALPHABET[char]]) if char in BYTE_ALPHABET else char.encode() for char in name)
