"""Encodes texts and chats into tokens with a model's tokenizer and chat template.

Does not import MLX, so that sandboxes stay small.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import jinja2

from node.core.errors import BadRequest, ContextExceeded, ModelBroken
from node.text.chat_form import ChatForm, with_text_arguments, without_none
from node.text.fim import PREFIX, FimForm
from node.text.template import ControlString, Marks, Segment


class Encoder:
    """Encoder of one model. Thread-safe.

    `hf`: a tokenizer of transformers. `renderer`: has its `apply_chat_template`.
    """

    def __init__(self, hf: Any, renderer: Any, controls: Sequence[ControlString], fim: FimForm | None) -> None:
        self._hf = hf
        self._hf.model_max_length = sys.maxsize  # no warning about long texts: the gateway checks the context
        if isinstance(hf.chat_template, str):
            hf.chat_template = without_none(hf.chat_template)
        self._renderer = renderer
        self._lock = threading.Lock()  # a fast tokenizer panics if two threads use it
        self._control_strings = controls
        self.bos: int | None = hf.bos_token_id
        self._adds_bos = hf.encode("")[:1] == [self.bos]
        self.fim = fim
        """How the model is asked for the text between two others; None if its tokenizer has no marks for that."""

    def encode(self, text: str, *, bos: bool = True) -> list[int]:
        """Encode a raw prompt. It begins with one BOS if the tokenizer adds one; without `bos`, none is added.

        Control strings in it become control tokens, as with OpenAI's legacy endpoint and vLLM: the sender of a raw
        prompt writes the template himself.
        """
        with self._lock, panics_as_errors():
            tokens = self._encode_added(text)
        return self._with_bos(tokens) if bos else tokens

    def _with_bos(self, tokens: list[int]) -> list[int]:
        if self.bos is not None and self._adds_bos and tokens[:1] != [self.bos]:
            return [self.bos, *tokens]
        return tokens

    def encode_fragment(self, text: str) -> list[int]:
        """Encode a piece from the middle of a text; control strings in it do not become control tokens."""
        with self._lock, panics_as_errors():
            return _in_the_middle(self._encode_plain, text)

    def encode_prediction(self, text: str) -> list[int]:
        """Encode a text as a model writes it in an answer, with added tokens that are ordinary text (runs of blanks).

        A user typed it: control strings in it do not become control tokens.
        """
        with self._lock, panics_as_errors():
            return _in_the_middle(self._encode_of(text), text)

    def encode_fim(self, prefix: str, suffix: str) -> list[int]:
        """Encode the prompt for the text between two others, with BOS as in `encode`; `fim` must not be None.

        Users typed both: control strings in them do not become control tokens. The prefix begins a text, the suffix does not.
        """
        assert self.fim
        tokens: list[int] = []
        with self._lock, panics_as_errors():
            for part in self.fim.parts:
                if isinstance(part, int):
                    tokens.append(part)
                elif part == PREFIX:
                    tokens += self._encode_of(prefix)(prefix)
                else:
                    tokens += _in_the_middle(self._encode_of(suffix), suffix)
        return self._with_bos(tokens)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        more: Mapping[str, Any] = MappingProxyType({}),
        *,
        context: int = sys.maxsize,
        max_token_chars: int = 1,
    ) -> list[int]:
        """Tokens of the chat that `render` returns, with `more` as its variables. Raises as `render` and `check_length` do."""
        segments = self.render(messages, tools, **more)
        size = _characters(segments)
        try:
            check_length(size, context, max_token_chars, param="messages")
        except ContextExceeded as error:
            if not tools:
                raise
            try:
                without = _characters(self.render(messages, None, **more))
            except BadRequest:  # a template that is written for chats with tools
                raise error from None
            said = f"{error.message.removesuffix('.')}, of which {max(0, size - without)} are its {len(tools)} tools."
            raise ContextExceeded(said, param="messages") from error
        return self.encode_segments(segments)

    def encode_pieces(self, pieces: Sequence[tuple[str, bool]]) -> list[int]:
        """Tokens of a chat of pieces (text, typed by a user?), joined without a template, with BOS as in `encode`.

        Control strings become control tokens except in typed pieces. Raises BadRequest.
        """
        marks = Marks(self._control_strings, [text for text, _ in pieces])
        joined = "".join(marks.shield(text) if typed else text for text, typed in pieces)
        return self._with_bos(self.encode_segments(marks.segments(joined)))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[Segment]:
        """Render a chat with the model's template. Text in messages and tools never becomes a control token.

        If the last message is the assistant's, the answer continues it, unless the template prevents that. `kwargs` are
        passed to the template. Raises BadRequest if the template refuses the messages.
        """
        template = self._hf.chat_template
        if self._renderer is self._hf and template is None:
            raise BadRequest("This model has no chat template.", hint="Use /v1/completions.", param="messages")
        form = ChatForm.of(template) if isinstance(template, str) else ChatForm()
        if self._renderer is not self._hf:  # it is code, which refuses variables that it does not know
            kwargs.pop("reasoning_effort", None)
        elif "enable_thinking" in kwargs and not form.enable_thinking:  # some call it only `thinking`
            kwargs.setdefault("thinking", kwargs["enable_thinking"])
        given = {"messages": form.messages(messages), "tools": list(tools) if tools else None, **kwargs}
        marks = Marks(self._control_strings, given)
        with self._lock:
            return list(marks.segments(self._render(add_generation_prompt, **marks.wrap(given))))

    def encode_segments(self, segments: Iterable[tuple[str, bool]]) -> list[int]:
        tokens: list[int] = []
        with self._lock, panics_as_errors():
            for text, typed in segments:
                if not typed:
                    tokens += self._encode_added(text)
                else:
                    tokens += _in_the_middle(self._encode_plain, text) if tokens else self._encode_plain(text)
        return tokens

    def _render(self, add_generation_prompt: bool, *, messages: list[dict[str, Any]], **kwargs: Any) -> str:
        last = messages[-1]
        unfinished = last.get("role") == "assistant" and last.get("content") and not last.get("tool_calls")
        if add_generation_prompt and unfinished:
            try:
                return self._apply(messages, add_generation_prompt=False, continue_final_message=True, **kwargs)
            except BadRequest:
                pass  # The template changes the last message, so that its end cannot be found.
        return self._apply(messages, add_generation_prompt=add_generation_prompt, **kwargs)

    def _apply(self, messages: list[dict[str, Any]], **kwargs: Any) -> str:
        try:
            return self._applied(messages, **kwargs)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
            # Templates refuse what their model does not support: two user turns in a row, a system role.
            raise BadRequest(f"The model's chat template refuses the messages: {error}", param="messages") from error

    def _applied(self, messages: list[dict[str, Any]], **kwargs: Any) -> str:
        try:
            return str(self._renderer.apply_chat_template(messages, tokenize=False, **kwargs))
        except TypeError:
            # Some join a call's arguments to strings (DeepSeek's), others need an object. No text tells all of them.
            if (with_texts := with_text_arguments(messages)) == messages:
                raise
            return str(self._renderer.apply_chat_template(with_texts, tokenize=False, **kwargs))

    def _encode_added(self, text: str) -> list[int]:
        """Encode with the added tokens that are in the text."""
        return list(self._hf.encode(text, add_special_tokens=False))

    def _encode_of(self, typed: str) -> Callable[[str], list[int]]:
        """How a text of a user is encoded: with the added tokens that are ordinary text, unless a control string is in it."""
        has_control = any(control.text in typed for control in self._control_strings)
        return self._encode_plain if has_control else self._encode_added

    def _encode_plain(self, text: str) -> list[int]:
        """Encode without looking for added tokens."""
        backend = getattr(self._hf, "backend_tokenizer", None)
        if backend is None:
            return list(self._hf.encode(text, add_special_tokens=False, split_special_tokens=True))
        if backend.normalizer is not None:
            text = backend.normalizer.normalize_str(text)
        words = (
            [text] if backend.pre_tokenizer is None else [w for w, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        )
        return [token.id for word in words for token in backend.model.tokenize(word)]


def _in_the_middle(encode: Callable[[str], list[int]], text: str) -> list[int]:
    """Encode a text as in the middle of another one."""
    # SentencePiece puts a blank before the first word of a text. A line break in front prevents that.
    line_break = encode("\n")
    tokens = encode("\n" + text)
    if tokens[: len(line_break)] == line_break:
        return tokens[len(line_break) :]
    return encode(text)


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Translate a panic of the tokenizers library, which is not an Exception, into ModelBroken."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ModelBroken(f"The model's tokenizer failed: {error}") from error


def _characters(segments: Iterable[Segment]) -> int:
    return sum(len(text) for text, _ in segments)


def check_length(characters: int, context: int, max_token_chars: int, *, param: str) -> None:
    """Raises ContextExceeded for a text that exceeds `context` tokens even if each has `max_token_chars` characters."""
    if characters > context * max_token_chars:
        raise ContextExceeded(
            f"This model's maximum context length is {context} tokens, of {max_token_chars} characters at most, but the "
            f"text has {characters} characters.",
            param=param,
        )
