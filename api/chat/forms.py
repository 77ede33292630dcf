"""The form that an answer must have, by the names of other servers: OpenAI's `response_format` is one of many.

Sources: vLLM's sampling parameters (`guided_*`, later `structured_outputs`), llama.cpp's server (`grammar`, `json_schema`), SGLang's
native API (`regex`, `ebnf`). What they have beyond this and would change an answer is refused unless it is off.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.http.errors import Unsupported
from api.http.json_object import Json
from node.core.errors import BadRequest


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """A JSON text."""

    schema: Mapping[str, Any]
    strict: bool = False
    param: str = "response_format"


@dataclass(frozen=True, slots=True)
class TextFormat:
    """A text that matches a regular expression, or follows a grammar of Lark or GBNF."""

    kind: str
    """`regex` or `grammar`."""
    text: str
    param: str


Format = JsonFormat | TextFormat

KINDS = {
    **dict.fromkeys(("guided_json", "structured_outputs.json", "json_schema"), "json"),
    **dict.fromkeys(("guided_regex", "structured_outputs.regex", "regex"), "regex"),
    **dict.fromkeys(("guided_grammar", "structured_outputs.grammar", "grammar", "ebnf"), "grammar"),
    **dict.fromkeys(("guided_choice", "structured_outputs.choice"), "choice"),
    "structured_outputs.json_object": "object",
}
"""What each parameter holds."""
OFF: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("mirostat", "dry_multiplier", "xtc_probability"), (0,)),
    **dict.fromkeys(("typical_p", "typical", "tfs_z"), (1,)),
    **dict.fromkeys(("bad_words", "bad_words_ids", "logits_processors"), ([],)),
    **dict.fromkeys(("stop_regex", "custom_logit_processor", "lora_path"), ([], "")),
    **dict.fromkeys(("use_beam_search", "structured_outputs.structural_tag"), (False,)),
    **dict.fromkeys(("include_stop_str_in_output", "no_stop_trim"), (False,)),
    **dict.fromkeys(("return_token_ids", "return_tokens_as_token_ids"), (False,)),
    "skip_special_tokens": (True,),
    "truncate_prompt_tokens": (-1,),
    **dict.fromkeys(("web_search_options", "prompt_logprobs"), ()),
}
"""Parameters that would change an answer, or have more in it, and the values with which they don't."""


def check_off(body: Mapping[str, Any]) -> None:
    """Raises Unsupported for a parameter that would change the answer, and is not followed."""
    for name, value in _given(body).items():
        if name in OFF and value not in OFF[name]:
            raise Unsupported(f"'{name}' is not supported.", param=name)


def format_of(body: Mapping[str, Any]) -> Format | None:
    """The form that a request demands by another server's name. Raises BadRequest."""
    found = [(name, value) for name, value in _given(body).items() if name in KINDS and value not in (False, "")]
    if not found:
        return None
    (name, value), *others = found
    if others:
        raise BadRequest(f"'{name}' and '{others[0][0]}' can't both say the form of the answer.", param=name)
    match KINDS[name], value:
        case "json", _:
            return JsonFormat(_schema(name, value), param=name)
        case "object", True:
            return JsonFormat({"type": "object"}, param=name)
        case "choice", [_, *_] if all(isinstance(each, str) and each for each in value):
            return TextFormat("grammar", f"start: {' | '.join(map(json.dumps, value))}", name)
        case "regex" | "grammar" as kind, str() if value:
            return TextFormat(kind, value, name)
        case kind, _:
            wanted = {"choice": "a list of texts", "object": "true or false"}.get(kind, "a text")
            raise BadRequest(f"Invalid '{name}': input should be {wanted}, not empty.", param=name)


def _given(body: Mapping[str, Any]) -> Json:
    """The parameters that are given, those of `structured_outputs` by their paths."""
    nested = body.get("structured_outputs")
    within = nested.items() if isinstance(nested, Mapping) else ()
    if nested is not None and not isinstance(nested, Mapping):
        raise BadRequest("Invalid 'structured_outputs': input should be an object.", param="structured_outputs")
    both = {**body, **{f"structured_outputs.{name}": value for name, value in within}}
    return {name: value for name, value in both.items() if value is not None}


def _schema(name: str, value: Any) -> Mapping[str, Any]:
    """A schema, which vLLM takes as JSON text, too."""
    try:
        schema = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"Invalid '{name}': the text is no JSON: {error}", param=name) from error
    if not isinstance(schema, Mapping):
        raise BadRequest(f"Invalid '{name}': input should be a JSON schema.", param=name)
    return schema
