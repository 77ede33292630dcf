"""Text to tokens and back, for one model. The gateway's only view of what mlx-lm and transformers know of text."""

import codecs
import json
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jinja2
from mlx_lm import tokenizer_utils

from node.core.errors import BadRequest, ModelBroken
from node.engine.dialect import Dialect
from node.engine.template import ControlString, Marks

Symbol = str | int
"""A character, or the id of a control token."""


class Detokenizer(Protocol):
    """Text that grows token by token. A character is given out when its last byte is there, and never before."""

    def add(self, token: int) -> str:
        """The text that this token completes; empty for a control token."""


class Tokenizer:
    """A model's tokenizer and chat template, from its directory. Safe to use from several threads."""

    def __init__(self, directory: Path) -> None:
        try:
            wrapper = tokenizer_utils.load(directory)
            named_ends = _eos_ids(directory)
        except (OSError, ValueError, KeyError) as error:
            raise ModelBroken(f"The tokenizer in {directory} can't be read: {error}") from error
        # The wrapper would set `enable_thinking` where the template's own default should stand.
        self._hf = wrapper._tokenizer  # noqa: SLF001
        in_python = self._hf.chat_template is None or "chat_template_type" in self._hf.init_kwargs
        self._renderer = wrapper if in_python and wrapper.has_chat_template else self._hf
        self._hf.model_max_length = sys.maxsize  # its warning; the gateway knows the context and refuses
        self._lock = threading.Lock()  # a fast tokenizer panics when two threads use it
        added = self._hf.added_tokens_decoder
        self._added = {token: entry.content.encode() for token, entry in added.items()}
        self._to_bytes = _byte_reader(self._hf)
        self._bytes: dict[int, bytes] = {}
        self.vocab_size = len(self._hf)
        self.bos: int | None = self._hf.bos_token_id
        self.eos = named_ends | ({self._hf.eos_token_id} - {None})
        """Tokens that end an answer."""
        self.control = self.eos | {token for token, entry in added.items() if entry.special}
        """Tokens whose text is never shown."""
        self.dialect = Dialect.of(wrapper)
        self.markup = self.control | {token for token, entry in added.items() if self._is_markup(entry.content)}
        """Tokens that templates are made of: the control tokens, and others such as <tool_call>, whose text is shown."""
        self.spells = self._to_bytes is not None
        """Whether the text of an answer is the bytes of its tokens, joined."""
        self.start: int | None = self._hf.eos_token_id if self.bos is None else self.bos
        """What a text without any words begins with."""
        self._adds_bos = self._hf.encode("")[:1] == [self.bos]
        self._control_strings = [
            ControlString(entry.content, entry.lstrip, entry.rstrip)
            for token, entry in added.items()
            if token in self.markup
        ]

    # --- text to tokens ---

    def encode(self, text: str) -> list[int]:
        """A raw prompt. Begins with BOS if the model's tokenizer says so, but never with two.

        Control strings in it become control tokens, as with OpenAI's legacy endpoint and vLLM: who sends a raw prompt
        writes the template himself.
        """
        with self._lock:
            tokens: list[int] = self._hf.encode(text, add_special_tokens=False)
        return self._with_bos(tokens)

    def _with_bos(self, tokens: list[int]) -> list[int]:
        if self.bos is not None and self._adds_bos and tokens[:1] != [self.bos]:
            return [self.bos, *tokens]
        return tokens

    def encode_inside(self, text: str) -> list[int]:
        """A piece from the middle of a text, in which nothing is a control token."""
        with self._lock:
            return self._encode_typed(text, first=False)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[int]:
        """The chat as the model's own template writes it. Text in messages and tools never becomes a control token.

        A last message of the assistant is continued if the template can. `kwargs` reach the template.
        """
        if self._renderer is self._hf and self._hf.chat_template is None:
            raise BadRequest("This model has no chat template.", hint="Use /v1/completions.", param="messages")
        given = {
            "messages": [self._with_known_role(message) for message in messages],
            "tools": list(tools) if tools else None,
            **kwargs,
        }
        marks = Marks(self._control_strings, given)
        with self._lock:
            return self._encode_marked(marks, self._render(add_generation_prompt, **marks.wrap(given)))

    def join(self, pieces: Sequence[tuple[str, bool]]) -> list[int]:
        """A chat that the caller has written himself, in pieces, each with whether a person typed it.

        Control strings become control tokens in the pieces that nobody typed. Begins with BOS as `encode` does.
        """
        marks = Marks(self._control_strings, [text for text, _ in pieces])
        rendered = "".join(marks.shield(text) if typed else text for text, typed in pieces)
        with self._lock:
            tokens = self._encode_marked(marks, rendered)
        return self._with_bos(tokens)

    def _encode_marked(self, marks: Marks, rendered: str) -> list[int]:
        tokens: list[int] = []
        for segment in marks.segments(rendered):
            if segment.typed:
                tokens += self._encode_typed(segment.text, first=not tokens)
            else:
                tokens += self._hf.encode(segment.text, add_special_tokens=False)
        return tokens

    def _render(self, add_generation_prompt: bool, *, messages: list[dict[str, Any]], **kwargs: Any) -> str:
        last = messages[-1]
        unfinished = last.get("role") == "assistant" and last.get("content") and not last.get("tool_calls")
        if add_generation_prompt and unfinished:
            try:
                return self._apply(messages, add_generation_prompt=False, continue_final_message=True, **kwargs)
            except BadRequest:
                pass  # The template changes the last message, so there is no place from which to continue.
        return self._apply(messages, add_generation_prompt=add_generation_prompt, **kwargs)

    def _apply(self, messages: list[dict[str, Any]], **kwargs: Any) -> str:
        try:
            rendered: str = self._renderer.apply_chat_template(messages, tokenize=False, **kwargs)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
            # Templates refuse what their model was not made for: two user turns in a row, a system role.
            raise BadRequest(f"The model's chat template refuses the messages: {error}", param="messages") from error
        return rendered

    def _with_known_role(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """`developer` is OpenAI's new name for `system`, which most templates do not know."""
        template = self._hf.chat_template
        renamed = message.get("role") == "developer" and isinstance(template, str) and "developer" not in template
        return {**message, "role": "system"} if renamed else dict(message)

    def _is_markup(self, text: str) -> bool:
        """Whether an added token that is not called special is a piece of the template (Qwen's <tool_call>) or a marker.

        Others are ordinary text, such as the runs of blanks and the HTML tags of Gemma.
        """
        template = self._hf.chat_template
        markers = [marker for edges in self.dialect.turns.values() for marker, _ in edges]
        written = [template, *markers] if isinstance(template, str) else markers
        return not text.isspace() and any(text in each for each in written)

    def _encode_typed(self, text: str, *, first: bool) -> list[int]:
        """Encode without looking for added tokens; not `first`: as it is encoded in the middle of a text."""
        if first:
            return self._encode_plain(text)
        # SentencePiece's way puts a blank before the first word of a text. A line break takes its place.
        line_break = self._encode_plain("\n")
        tokens = self._encode_plain("\n" + text)
        if tokens[: len(line_break)] == line_break:
            return tokens[len(line_break) :]
        return self._encode_plain(text)

    def _encode_plain(self, text: str) -> list[int]:
        backend = getattr(self._hf, "backend_tokenizer", None)
        if backend is None:
            slow: list[int] = self._hf.encode(text, add_special_tokens=False, split_special_tokens=True)
            return slow
        if backend.normalizer is not None:
            text = backend.normalizer.normalize_str(text)
        words = (
            [text] if backend.pre_tokenizer is None else [w for w, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        )
        return [token.id for word in words for token in backend.model.tokenize(word)]

    # --- tokens to text ---

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
            with self._lock:
                text: str = self._hf.decode([token])
            return text.encode()
        return self._to_bytes(name)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a whole sequence, without control tokens."""
        shown = [token for token in tokens if token not in self.control]
        if self._to_bytes is None:
            with self._lock:
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


def _eos_ids(directory: Path) -> frozenset[int]:
    """The ends of an answer that the model's own files name; chat models often have more than the tokenizer knows."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        config = json.loads(path.read_text("utf-8")) if path.exists() else {}
        for part in (config, config.get("text_config") or {}):
            eos = part.get("eos_token_id")
            found |= {eos} if isinstance(eos, int) else set(eos or ())
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
