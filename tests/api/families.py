"""Small tokenizers like those of the model families whose tool calls mlx-lm can read."""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from node.text.tokenizer import Tokenizer

CORPUS = ["the quick brown fox jumps over the lazy dog", 'Rome, {"city": "Rome", "days": 3}', "function call name"] * 9


@dataclass(frozen=True)
class Family:
    """`hint`: text by which mlx-lm recognizes the template; `call`: the family's call of `weather` for Rome."""

    hint: str
    call: str
    special: tuple[str, ...] = ()
    """Control tokens."""
    added: tuple[str, ...] = ()
    """Tokens whose text is shown."""
    think: tuple[str, str] = ("", "")


KIMI = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
XTML = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
FAMILIES = {
    "qwen": Family(
        "<tool_call> {{ tool_call.name }}",
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>',
        added=("<tool_call>", "</tool_call>", "<think>", "</think>"),
        think=("<think>\n", "\n</think>\n\n"),
    ),
    "mistral": Family(
        "[TOOL_CALLS]", '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Rome"}}]', ("[TOOL_CALLS]",)
    ),
    "qwen coder": Family(
        "<tool_call>\n<function=",
        "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
        added=("<tool_call>", "</tool_call>"),
    ),
    "glm": Family(
        "<arg_key>",
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>",
        added=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "kimi k2": Family(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        '{"city": "Rome"}<|tool_call_end|><|tool_calls_section_end|>',
        (*KIMI, "<|tool_calls_section_end|>"),
    ),
    "kimi k3": Family(
        "",
        '<|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|><|open|>argument key="city" type="string"'
        "<|sep|>Rome<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        XTML,
        think=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ),
    "lfm": Family(
        "<|tool_call_start|>",
        '<|tool_call_start|>[weather(city="Rome")]<|tool_call_end|>',
        ("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    "function gemma": Family(
        "<start_function_call>",
        "<start_function_call>call:weather{city:<escape>Rome<escape>}<end_function_call>",
        added=("<start_function_call>", "<end_function_call>", "<escape>"),
    ),
    "gemma 4": Family(
        "<|tool_call> <tool_call|>",
        '<|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|>',
        ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
        think=("<|channel>thought\n", "<channel|>"),
    ),
    "minimax": Family(
        "<minimax:tool_call>",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Rome</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
        added=("<minimax:tool_call>", "</minimax:tool_call>"),
    ),
    "muse spark": Family(
        "<atem:function_calls>",
        '<atem:function_calls>\n<atem:invoke name="weather">\n<atem:parameter name="city">Rome</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls>",
        added=("<atem:function_calls>", "</atem:function_calls>"),
    ),
    "longcat": Family(
        "<longcat_tool_call>",
        "<longcat_tool_call>weather<longcat_arg_key>city</longcat_arg_key><longcat_arg_value>Rome</longcat_arg_value>"
        "</longcat_tool_call>",
        added=("<longcat_tool_call>", "</longcat_tool_call>", "<longcat_think>", "</longcat_think>"),
        think=("<longcat_think>", "</longcat_think>"),
    ),
    "minicpm": Family(
        '<function name=" <param name="', '<function name="weather"><param name="city">Rome</param></function>'
    ),
}

HARMONY = Family("", "", ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|constrain|>"))
"""gpt-oss, whose answers are messages with headers."""


def make(family: Family, directory: Path) -> Tokenizer:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    backend.add_special_tokens(["<s>", "</s>", *family.special])
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in family.added])
    template = "{# " + family.hint.replace("{{", "").replace("}}", "") + " #}"
    template += "{% for m in messages %}<s>{{ m.role }} {{ m.content }}</s>{% endfor %}<s>assistant "
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template=template)
    fast.save_pretrained(directory)
    return Tokenizer(directory)
