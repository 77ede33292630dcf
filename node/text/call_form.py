"""The forms in which model families write calls of functions, as mlx-lm's parsers read them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

PLACES = {"{number}": "[0-9]{1,4}", "{kind}": "string|number|integer|boolean|object|array|null"}
"""What the texts of a form leave to the model: the number of a call, as it counts them, and the JSON type of an argument."""
_LINE = '{"name": "'
"""The beginning of `call_head`."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a model family writes calls: after `mark`, `head NAME joint ARGUMENTS tail`, for each further call `again NAME …`,
    then `end`; without `again`, there is one call only. The arguments are JSON, or with a `value`, each of them is
    `key NAME value VALUE stop`, with a `comma` between two. A text as VALUE goes up to `stop`; without that, it stands between
    `quote` and `unquote`, and without these it is JSON as all else; with all three, it may be quoted, and then holds `stop`, too.
    A dialect has texts, a grammar strings and ids of tokens.
    """

    mark: str
    head: Sequence[str | int] = ""
    joint: Sequence[str | int] = ""
    tail: Sequence[str | int] = ""
    again: Sequence[str | int] = ""
    end: Sequence[str | int] = ""
    key: Sequence[str | int] = ""
    value: Sequence[str | int] = ""
    stop: Sequence[str | int] = ""
    comma: Sequence[str | int] = ""
    quote: Sequence[str | int] = ""
    unquote: Sequence[str | int] = ""
    text_end: str = field(default="", kw_only=True)
    """The text of `stop`, or without one of `unquote`."""

    @property
    def line_end(self) -> Sequence[str | int]:
        """What closes a call that is a line of JSON, as `call_head` begins it; empty, if the family writes none between marks."""
        begin, *tail = self.tail or ("",)
        is_line = self.again and not self.end and str(self.again[-1]).endswith(_LINE) and str(begin).startswith("}")
        return [str(begin)[1:], *tail] if is_line else []

    @property
    def next_line(self) -> Sequence[str | int]:
        """What may come between this and the next line."""
        *pieces, last = self.again or ("",)
        return ["\n", *pieces, str(last).removesuffix(_LINE)]

    @property
    def opening(self) -> Sequence[str | int]:
        """What comes between the name of a custom tool and its text, which is the argument `input` where each is written by itself."""
        quote = [] if self.stop else self.quote
        return [*self.joint, *self.key, "input", *self.value, *quote] if self.value else self.joint


def form_of(kind: str, vocabulary: Mapping[str, int], template: str) -> CallForm | None:
    """The form of calls that mlx-lm's parser of this name reads."""
    if kind == "mistral" and "[ARGS]" in vocabulary:
        return _HEADED
    if kind in ("glm47", "laguna"):
        return _GLM_IN_LINES if str(_GLM_IN_LINES.value) in template else _TAGGED["glm47"]
    return _FORMS.get(kind) or _TAGGED.get(kind)


def pattern(text: Sequence[str | int]) -> str:
    """An expression for a text of a form."""
    found = re.escape(str(text))
    for place, expression in PLACES.items():
        found = found.replace(re.escape(place), f"(?:{expression})")
    return found


HARMONY = CallForm("<|channel|>commentary to=functions.", joint=" <|constrain|>json<|message|>")
_HEADED = CallForm("[TOOL_CALLS]", joint="[ARGS]", again="[TOOL_CALLS]")
_FORMS = {
    "json_tools": CallForm(
        "<tool_call>", '\n{"name": "', '", "arguments": ', "}\n</tool_call>", '<tool_call>\n{"name": "'
    ),
    "mistral": CallForm("[TOOL_CALLS]", '[{"name": "', '", "arguments": ', "}", ', {"name": "', "]"),
    "kimi_k2": CallForm(
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.",
        ":{number}<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_call_begin|>functions.",
        "<|tool_calls_section_end|>",
    ),
}
"""By the names of mlx-lm's parsers."""
_TAGGED = {
    "qwen3_coder": CallForm(
        "<tool_call>",
        "\n<function=",
        ">\n",
        "</function>\n</tool_call>",
        "<tool_call>\n<function=",
        key="<parameter=",
        value=">\n",
        stop="\n</parameter>\n",
    ),
    "glm47": CallForm(
        "<tool_call>",
        tail="</tool_call>",
        again="<tool_call>",
        key="<arg_key>",
        value="</arg_key><arg_value>",
        stop="</arg_value>",
    ),
    "minimax_m2": CallForm(
        "<minimax:tool_call>",
        '\n<invoke name="',
        '">\n',
        "</invoke>\n",
        '<invoke name="',
        "</minimax:tool_call>",
        key='<parameter name="',
        value='">',
        stop="</parameter>\n",
    ),
    "muse_spark": CallForm(
        "<atem:function_calls>",
        '\n<atem:invoke name="',
        '">\n',
        "</atem:invoke>\n",
        '<atem:invoke name="',
        "</atem:function_calls>",
        key='<atem:parameter name="',
        value='">',
        stop="</atem:parameter>\n",
    ),
    "longcat": CallForm(
        "<longcat_tool_call>",
        tail="</longcat_tool_call>",
        again="<longcat_tool_call>",
        key="<longcat_arg_key>",
        value="</longcat_arg_key><longcat_arg_value>",
        stop="</longcat_arg_value>",
    ),
    "kimi_k3": CallForm(
        "<|open|>tools<|sep|>",
        '<|open|>call tool="',
        '" index="{number}"<|sep|>',
        "<|close|>call<|sep|>",
        '<|open|>call tool="',
        "<|close|>tools<|sep|>",
        key='<|open|>argument key="',
        value='" type="{kind}"<|sep|>',
        stop="<|close|>argument<|sep|>",
    ),
    "minicpm5": CallForm(
        "<function name=",
        '"',
        '">',
        "</function>",
        '<function name="',
        key='<param name="',
        value='">',
        stop="</param>",
        quote="<![CDATA[",
        unquote="]]>",
    ),
    "pythonic": CallForm("<|tool_call_start|>", "[", "(", ")", ", ", "]<|tool_call_end|>", value="=", comma=", "),
    "function_gemma": CallForm(
        "<start_function_call>",
        "call:",
        "{",
        "}<end_function_call>",
        "<start_function_call>call:",
        value=":",
        comma=",",
        quote="<escape>",
        unquote="<escape>",
    ),
    "gemma4": CallForm(
        "<|tool_call>",
        "call:",
        "{",
        "}<tool_call|>",
        "<|tool_call>call:",
        value=":",
        comma=",",
        quote='<|"|>',
        unquote='<|"|>',
    ),
}
"""Those whose arguments are written one by one."""
_GLM_IN_LINES = replace(_TAGGED["glm47"], joint="\n", value="</arg_key>\n<arg_value>", stop="</arg_value>\n")
"""Of GLM 4.5 and 4.6."""
