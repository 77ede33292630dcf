"""How the thoughts of a family are ended once they have taken as many tokens as a request allows."""

from collections.abc import Sequence

from node.core.generation import ThinkingBudget
from node.text import harmony
from node.text.tokenizer import Tokenizer

_HARMONY = ("<|channel|>analysis<|message|>", "<|end|>", f"<|end|><|start|>assistant{harmony.OPENING}")
QWEN = "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now.\n"
"""With these words Qwen's models were trained to end their thoughts early (Qwen3's technical report)."""


def thinking_budget(tokenizer: Tokenizer, prompt: Sequence[int], tokens: int, *, tools: bool) -> ThinkingBudget | None:
    """The budget of an answer to a prompt, which may call `tools` or has none; None if the family has no thoughts."""
    dialect = tokenizer.dialect
    if dialect.initial == "header":
        begin, end, closing = (tuple(tokenizer.encode(text, bos=False)) for text in _HARMONY)
        return ThinkingBudget(tokens, begin, end, closing)
    if not dialect.think_end:
        return None
    begun = dialect.channel_after(prompt) == "reasoning"
    controls = {control.text for control in tokenizer.control_strings}
    words = tokenizer.encode_fragment(QWEN if "<|im_start|>" in controls else "\n")
    marks = dialect.markers(tools=tools)["reasoning"]
    calls = [tokenizer.encode(mark, bos=False) for mark, to in marks if to == "tool"]
    ends = (dialect.think_end[-1], *(mark[0] for mark in calls if len(mark) == 1))
    return ThinkingBudget(tokens, () if begun else tuple(dialect.think_start), ends, (*words, *dialect.think_end))
