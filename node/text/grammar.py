"""Makes grammars in llguidance's format, for JSON schemas and for tool calls.

The gateway makes and checks the text of a grammar, and the driver follows the same text.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from node.core.errors import BadRequest
from node.text.call_form import PLACES, CallForm
from node.text.json_schema import prepared
from node.text.tagged import NAME, arguments_of

MAX_CALLS = 16
"""Maximum calls in one answer, as weak models repeat calls forever."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function that a model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False
    """Whether to refuse a schema with unsupported keywords, instead of ignoring them."""
    free: Sequence[str] = ()
    """A kind (`regex` or `grammar`) and its text: the call has a text that follows it instead of JSON. Empty: JSON."""


def json_grammar(schema: Mapping[str, Any], *, strict: bool, param: str) -> str:
    """Grammar of the JSON texts that the schema accepts. Raises BadRequest, naming `param`."""
    try:
        grammar = LLMatcher.grammar_from_json_schema(prepared(schema, strict=strict))
    except ValueError as error:  # integers of more than 64 bits
        raise BadRequest(f"Invalid '{param}': the schema can't be followed: {error}", param=param) from error
    return _checked(grammar, param)


def text_grammar(kind: str, text: str, param: str) -> str:
    """Grammar of what matches a `regex`, or follows a `grammar` in Lark's syntax or GBNF. Raises BadRequest, naming `param`."""
    is_regex = kind == "regex"
    grammar = LLMatcher.grammar_from_regex(text) if is_regex else LLMatcher.grammar_from_lark(_from_gbnf(text))
    return _checked(grammar, param, "expression" if is_regex else "grammar")


def calls_grammar(
    functions: Sequence[Function],
    *,
    many: bool,
    param: str,
    answer: Mapping[str, Any] | None = None,
    form: CallForm | None = None,
) -> str:
    """Grammar of one call, or of `many` with a line each. With a schema `answer`, a JSON answer is allowed instead.

    Each function has its own JSON root, as references in its schema are relative to it. A free text ends where the answer does,
    so its call is the only one. A model whose `form` has such lines between marks may close each as it is used to: where it
    could not, it would take the line break before its closing mark, and have to go on with another call. Raises BadRequest.
    """
    marks: dict[int, str] = {}
    # In several tokens: the lexer takes the longest match, which must not span the beginning of a similar answer.
    heads = [" ".join(map(json.dumps, _head(function.name))) for function in functions]
    calls = [f'{head} arguments_{place} "}}"' for place, head in enumerate(heads) if not functions[place].free]
    texts = [f"{head} arguments_{place}" for place, head in enumerate(heads) if functions[place].free]
    close = _lark_of(form.line_end, marks) if form else ""
    ways = f'("\\n" | {close} {_lark_of(form.next_line, marks)})' if form and close and many else '"\\n"'
    more = f" ({ways} call){{0,{MAX_CALLS - 1}}}" if many else ""
    ended = f" ({close})?" if close else ""
    rules = [
        f"start: {'calls' if answer is None else 'answer | calls'}",
        *_rule("calls", [*([f"call{more}{ended}"] if calls else []), *texts]),
        *_rule("call", calls),
        *_arguments(functions),
        *([] if answer is None else [f"answer: %json {json.dumps(prepared(answer, strict=False))}"]),
        *_marks(marks),
    ]
    grammar = LLMatcher.grammar_from_lark("\n".join(rules))
    _checked(spelled(grammar), param)
    return grammar


def form_grammar(functions: Sequence[Function], form: CallForm, *, many: bool, param: str) -> str:
    """Grammar of an answer that is free up to the mark of `form`, and calls from there to its end. Raises BadRequest."""
    marks: dict[int, str] = {}
    lark = partial(_lark_of, marks=marks)
    begun = [
        f"{json.dumps(function.name)} {lark(form.opening if function.free else form.joint)} arguments_{index}"
        for index, function in enumerate(functions)
    ]
    calls = [f"{each} {lark(form.tail)}" for index, each in enumerate(begun) if not functions[index].free]
    more = f' ("\\n"? {lark(form.again)} call){{0,{MAX_CALLS - 1}}}' if many and form.again else ""
    # What closes a free text must be no text itself.
    closing = lark([piece for piece in (*form.stop, *form.unquote, *form.tail, *form.end) if isinstance(piece, int)])
    texts = [f"{lark(form.head)} {each} {closing}" for index, each in enumerate(begun) if functions[index].free]
    rules = [
        *_rule("start", [*([f"{lark(form.head)} call{more} {lark(form.end)}"] if calls else []), *texts]),
        *_rule("call", calls),
        *(_tagged(functions, form, lark) if form.value else _arguments(functions)),
        *(f"{_place(place)}: /{expression}/" for place, expression in PLACES.items()),
        *_marks(marks),
    ]
    bound = LLMatcher.grammar_from_lark("\n".join(rules))
    _checked(spelled(bound), param)
    return json.dumps({"mark": form.mark, "bound": bound})


def _lark_of(pieces: Sequence[str | int], marks: dict[int, str]) -> str:
    """Pieces of a form in Lark's syntax; the names of tokens are added to `marks`."""
    written = []
    for each in pieces:
        if isinstance(each, int):
            written.append(marks.setdefault(each, f"mark_{len(marks)}"))
        else:
            parts = re.split(f"({'|'.join(map(re.escape, PLACES))})", each)
            written.append(" ".join(_place(part) if part in PLACES else json.dumps(part) for part in parts if part))
    return " ".join(written)


def _marks(marks: Mapping[int, str]) -> Iterable[str]:
    """The rules of tokens, each in a line of its own, so that `spelled` finds it."""
    return (f"{name}: <[{token}]>" for token, name in marks.items())


def split_mark(grammar: str) -> tuple[str, str]:
    """The mark up to which an answer is free, empty if it is not, and llguidance's grammar of what follows."""
    if not grammar.startswith('{"mark": '):
        return "", grammar
    try:
        parts = json.loads(grammar)
        mark, bound = parts["mark"], parts["bound"]
    except (ValueError, LookupError, RecursionError) as error:
        raise BadRequest(f"The grammar can't be read: {error}") from error
    if not isinstance(mark, str) or not isinstance(bound, str) or not mark:
        raise BadRequest("The grammar can't be read: it has no mark, or nothing after it.")
    return mark, bound


def spelled(grammar: str) -> str:
    """A grammar that costs the same without the tokens of a model: a line break stands for each of a call's form."""
    return re.sub(r"^(mark_\d+): <\[\d+\]>$", r'\1: "\\n"', split_mark(grammar)[1], flags=re.MULTILINE)


def _arguments(functions: Sequence[Function], first: int = 0) -> Iterable[str]:
    for index, function in enumerate(functions, first):
        if function.free:
            yield f"arguments_{index}: %lark {{\n{_lark(*function.free)}\n}}"
        else:
            yield f"arguments_{index}: %json {json.dumps(prepared(function.parameters, strict=function.strict))}"


def _tagged(functions: Sequence[Function], form: CallForm, lark: Callable[[Sequence[str | int]], str]) -> Iterable[str]:
    """Rules of arguments that are written one by one."""
    stop, comma = lark(form.stop), lark(form.comma)
    quoted = "" if form.stop else lark(form.quote)
    text = f"{quoted} text" if stop or quoted else ""
    yield from _text(form, lark)
    yield f"NAME: /{NAME}/"
    yield f"json: %json {json.dumps(prepared({}, strict=False))}"
    yield f"any: {text if stop else ' | '.join(filter(None, (text, 'json')))}"
    for index, function in enumerate(functions):
        if function.free:
            yield from _arguments([function], index)
            continue
        if "properties" not in function.parameters:  # any object
            pair = f"{lark(form.key)} NAME {lark(form.value)} any"
            yield f"arguments_{index}: ({pair} ({comma} {pair})*)?"
            continue
        pairs = []
        for place, argument in enumerate(arguments_of(function.parameters)):
            pair, value = f"pair_{index}_{place}", f"value_{index}_{place}"
            begun = f"{pair}: {lark(form.key)} {json.dumps(argument.name)} {lark(form.value)}"
            if argument.words == () and text:
                yield f"{begun} ({text}{' | ' + json.dumps('null') if quoted and argument.nullable else ''})"
            elif argument.words and text:
                yield f"{begun} {quoted} {value} {lark(form.unquote) if quoted else stop}"
                yield f"{value}: {' | '.join(map(json.dumps, argument.words))}"
            else:
                yield f"{begun} {value} {stop}"
                yield f"{value}: %json {json.dumps(prepared(argument.schema, strict=function.strict))}"
            pairs.append((pair, argument.required))
        yield f"arguments_{index}: {_in_order(pairs, comma)}"


def _text(form: CallForm, lark: Callable[[Sequence[str | int]], str]) -> Iterable[str]:
    """Rules of a text up to the first place where its end is written; one of tokens is in no text, nor spelled out."""
    end, parts = form.stop or form.unquote, (form.quote, form.unquote, form.stop)
    # It may be quoted before its stop.
    if all(part and all(isinstance(piece, str) for piece in part) for part in parts):
        quote, unquote, stop = (_expression("".join(map(str, part))) for part in parts)
        yield f"PLAIN: /(?s:.*){stop}/ & ~/\\s*{quote}(?s:.*)/"
        yield f"QUOTED: /\\s*{quote}(?s:.*){unquote}\\s*{stop}/"
        yield "text[lazy]: PLAIN | QUOTED"
    elif end and all(isinstance(piece, str) for piece in end):
        yield f"text[suffix={json.dumps(form.text_end)}]: /(?s:.*)/"
    elif end:
        yield f"TEXT: /(?s:.+)/ & ~/(?s:.*){_expression(form.text_end)}(?s:.*)/"
        yield f"text: TEXT? {lark(end)}"


def _expression(text: str) -> str:
    return re.escape(text).replace("/", r"\/").replace("\n", "n")  # a line break is escaped already


def _in_order(pairs: Sequence[tuple[str, bool]], comma: str) -> str:
    """The ways to write these arguments, of which some are required, with a comma between two."""
    ways = []
    for index, (pair, required) in enumerate(pairs):
        later = " ".join(f"{comma} {each}" if needed else f"({comma} {each})?" for each, needed in pairs[index + 1 :])
        ways.append(f"{pair} {later}")
        if required:
            return " | ".join(ways)
    return " | ".join([*ways, json.dumps("")])


def _place(text: str) -> str:
    return text.strip("{}").upper()


def _from_gbnf(text: str) -> str:
    """A grammar in Lark's syntax: the same, or that of a GBNF. llguidance takes one that begins with `?start:` for a GBNF."""
    return str(gbnf_to_lark(text)) if re.search(r"^[ \t]*[\w-]+[ \t]*::=", text, re.MULTILINE) else text


def _lark(kind: str, text: str) -> str:
    if kind == "grammar":
        return _from_gbnf(text)
    written = re.sub(
        r"\\.|[/\n]", lambda found: {"/": r"\/", "\n": r"\n"}.get(found[0], found[0]), text, flags=re.DOTALL
    )
    return f"start: /{written}/"


def _rule(name: str, ways: Sequence[str]) -> Sequence[str]:
    return [f"{name}: {' | '.join(ways)}"] if ways else []


def call_head(name: str) -> str:
    """Beginning of a call as most model families write it; its arguments and a closing brace follow."""
    return "".join(_head(name))


def _head(name: str) -> Sequence[str]:
    return ("{", '"name"', ": ", json.dumps(name), ", ", '"arguments"', ": ")


def _checked(grammar: str, param: str, what: str = "schema") -> str:
    if error := LLMatcher.validate_grammar(grammar):
        raise BadRequest(f"Invalid '{param}': the {what} can't be followed: {error.splitlines()[0][:500]}", param=param)
    return grammar
