"""A model's tokenizer: encodes, detokenizes, and knows the model's family. Wraps those of mlx-lm and transformers."""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from functools import cached_property
from typing import Any

from mlx_lm import tokenizer_utils
from transformers.convert_slow_tokenizer import bytes_to_unicode

from node.core.errors import ModelBroken, naming
from node.text.call_form import CallForm
from node.text.dialect import Dialect
from node.text.encoder import Encoder, panics_as_errors
from node.text.fim import FimForm
from node.text.picture_marks import PictureMarks
from node.text.reranking import Judgement
from node.text.template import ControlString
from node.text.tokenizer_files import CleanFolder
from node.text.tokenizer_settings import ends

Symbol = str | int
"""Character, or id of a control token."""


class Tokenizer(Encoder):
    """Tokenizer and chat template of a model. Thread-safe.

    The files are untrusted, and some take all memory: a sandbox must have cleaned and read them first, see
    `node.text.sandboxed_encoder`. Raises ModelBroken.
    """

    def __init__(self, folder: CleanFolder) -> None:
        try:
            self._read(folder)
        except ModelBroken:
            raise
        except BaseException as error:  # tokenizers raises bare Exceptions, and panics that are BaseExceptions
            reason = f"{type(error).__name__}: {naming(error, folder)}"[:500]
            raise ModelBroken(f"The model's tokenizer can't be read: {reason}") from error

    def _read(self, folder: CleanFolder) -> None:
        wrapper = tokenizer_utils.load(folder)
        named_ends = frozenset(ends(folder))
        # The wrapper would override the template's own default of `enable_thinking`.
        hf = wrapper._tokenizer  # noqa: SLF001
        self.template = hf.chat_template if isinstance(hf.chat_template, str) else ""
        """The chat template in Jinja; empty if it is code, or there is none."""
        template_is_code = hf.chat_template is None or "chat_template_type" in hf.init_kwargs
        self.dialect = Dialect.of(wrapper)
        added = hf.added_tokens_decoder
        markers = [marker for edges in self.dialect.transitions.values() for marker, _ in edges]
        written = [*markers, self.template, *(astuple(self.dialect.form) if self.dialect.form else ())]

        def is_markup(text: str) -> bool:
            """Others are ordinary text, such as Gemma's runs of blanks and HTML tags."""
            return not text.isspace() and any(text in str(each) for each in written)

        self.eos = named_ends | ({hf.eos_token_id} - {None})
        """Ids of the tokens that end an answer."""
        self.control = self.eos | {token for token, entry in added.items() if entry.special}
        """Ids of the control tokens, whose text is never shown."""
        vocabulary = hf.get_vocab()
        fim = FimForm.of(vocabulary)
        self.judgement = Judgement.of(vocabulary)
        """The tokens with which a reranker judges; None if there are none."""
        self.pictures = PictureMarks.of(vocabulary)
        """The tokens with which prompts hold pictures; None if the tokenizer has none."""
        marks = (fim.marks if fim else frozenset[int]()) | (self.pictures.tokens if self.pictures else frozenset())
        self.markup = self.control | marks | {token for token, entry in added.items() if is_markup(entry.content)}
        """Ids of the tokens that templates, FIM and pictures use: the control tokens, and others such as <tool_call>, whose text
        is shown."""
        meanings = self.pictures.meanings if self.pictures else {}
        self.control_strings = [
            ControlString(entry.content, entry.lstrip, entry.rstrip, meanings.get(entry.content, ""))
            for token, entry in added.items()
            if token in self.markup
        ]
        renderer = wrapper if template_is_code and wrapper.has_chat_template else hf
        super().__init__(hf, renderer, self.control_strings, fim)
        self.template_is_code = self._renderer is wrapper
        """Whether the chat template is Python code in mlx-lm instead of a Jinja template of the model."""
        self._added = frozenset(added)  # their ids may lie beyond the number of tokens
        self._to_bytes = _byte_reader(hf)
        self._bytes: dict[int, bytes] = {}
        self.vocab_size = len(hf)
        self.has_fixed_bytes = self._to_bytes is not None
        """Whether each token has fixed bytes, so that a text is the bytes of its tokens."""
        self.empty_text_token: int | None = hf.eos_token_id if self.bos is None else self.bos
        """Token that stands for an empty text; None if there is no such token."""
        self.max_token_chars = max(map(len, vocabulary), default=1)
        """Maximum characters of a token."""

    def symbols(self, text: str) -> list[Symbol]:
        """Split a marker into the symbols of an answer: characters, and ids of control tokens."""
        return [
            symbol
            for piece in self._pieces(text, self.control)
            for symbol in ([piece] if isinstance(piece, int) else piece)
        ]

    @cached_property
    def call_form(self) -> CallForm | None:
        """The form of the family's calls, of strings and ids of tokens; None if it is not known."""
        form = self.dialect.form
        if form is None:
            return None
        mark, *parts, _ = astuple(form)
        pieces = (self._pieces(str(part), self.markup) for part in parts)
        return CallForm(mark, *pieces, text_end=str(form.stop or form.unquote))

    def _pieces(self, text: str, marks: Iterable[int]) -> list[str | int]:
        """Split a text into strings and the `marks`, which are ids of tokens."""
        ids = {self.token_bytes(token).decode(errors="replace"): token for token in marks}
        longest_first = sorted(filter(None, ids), key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first)) or "(?!)"
        return [ids.get(piece, piece) for piece in re.split(f"({pattern})", text) if piece]

    def token_bytes(self, token: int) -> bytes:
        """Bytes of a token, control tokens included; they may be part of a character."""
        if token not in self._bytes:
            # Models often have more logits than their tokenizer has tokens; the additional ids have no text.
            known = 0 <= token < self.vocab_size or token in self._added
            name = self._hf.convert_ids_to_tokens(token) if known else None
            if name is None:
                self._bytes[token] = b""
            else:
                self._bytes[token] = self._to_bytes(name) if self._to_bytes else self._decoded([token]).encode()
        return self._bytes[token]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of a complete sequence, without control tokens."""
        return self._joined([token for token in tokens if token not in self.control])

    def spell(self, tokens: Sequence[int]) -> str:
        """Text of a complete sequence, with control tokens, as transformers decodes it."""
        text = self._joined(tokens)
        # SentencePiece puts a blank before the first word.
        is_added = self._to_bytes and text.startswith(" ") and not self._decoded(tokens[:1]).startswith(" ")
        return text[1:] if is_added else text

    def _joined(self, tokens: Sequence[int]) -> str:
        if self._to_bytes is None:
            return self._decoded(tokens, clean_up_tokenization_spaces=False)
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")

    def _decoded(self, tokens: Sequence[int], **how: bool) -> str:
        with self._lock, panics_as_errors():
            return str(self._hf.decode(tokens, **how))

    def names(self, tokens: Sequence[int]) -> list[str]:
        """The tokens as the vocabulary writes them."""
        return [name or "" for name in self._hf.convert_ids_to_tokens(list(tokens))]

    def detokenizer(self) -> "Detokenizer":
        return Detokenizer(self)


class Detokenizer:
    """Incremental detokenizer. Returns a character once its last byte is complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._window: list[int] = []
        self._given = 0
        """Number of tokens of the window whose text has been returned; they stay as neighbours of the next ones."""

    def add(self, token: int) -> str:
        """Text that this token completes; empty for a control token."""
        if token in self._tokenizer.control:
            return ""
        if self._tokenizer.has_fixed_bytes:
            return self._utf8.decode(self._tokenizer.token_bytes(token))
        # The text of other tokens depends on their neighbours: a short window is decoded with and without the new ones.
        self._window.append(token)
        before = self._tokenizer.decode(self._window[: self._given])
        text = self._tokenizer.decode(self._window)
        if len(text) <= len(before) or text.endswith("\ufffd"):
            return ""
        self._window = self._window[self._given :]
        self._given = len(self._window)
        return text[len(before) :]


def _byte_reader(hf: Any) -> Callable[[str], bytes] | None:
    """Function from a token's name to its bytes; None unless the tokenizer's decoder is of one of the two common
    kinds. Added tokens are no exception: Gemma writes runs of blanks as ▁, too.
    """
    backend = getattr(hf, "backend_tokenizer", None)
    if backend is None or backend.decoder is None:
        return None
    decoder = json.loads(backend.decoder.__getstate__())
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = {step["type"] for step in steps}
    if kinds == {"ByteLevel"}:
        return _read_byte_level
    # "Strip" drops the blank before a text's first word; in an answer that blank is text, so the step is ignored.
    blanks = all(step.get("pattern") == {"String": "▁"} for step in steps if step["type"] == "Replace")
    known = kinds & {"Replace", "Metaspace"} and kinds <= {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"}
    return _read_sentencepiece if blanks and known else None


def _read_sentencepiece(name: str) -> bytes:
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes.fromhex(name[3:5])
    return name.replace("▁", " ").encode()


BYTE_ALPHABET = {char: byte for byte, char in bytes_to_unicode().items()}


def _read_byte_level(name: str) -> bytes:
    if BYTE_ALPHABET.keys() >= set(name):
        return bytes(BYTE_ALPHABET[char] for char in name)
    return name.encode()  # an added token, as a text has it
