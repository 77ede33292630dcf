"""Prompts of a given approximate length. All differ from the start, so no server answers from an earlier one."""

import random

TEXT = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they
which one you were all her she there would their we him been has when who will no more if out so up said
what its about than into them can only other time new some could these two may first then do any like my now
over such our man me even most made after also did many off before must well back through years much where
your way down should
"""
CHATS = [
    "Tell me a story.",
    "What is a ring?",
    "Who are you?",
    "Write a poem about the sea.",
    "Tell me a joke.",
    "Tell me a story about a robot.",
    "Why did the node leave?",
    "What is the capital of France?",
]
"""Chats that the built-in model answers."""
WORDS = TEXT.split()

_random = random.Random()


def text(words: int) -> str:
    return " ".join(_random.choices(WORDS, k=max(words, 1)))


def token_ids(count: int) -> list[int]:
    """Return ordinary tokens, for models with the built-in tokenizer."""
    return [_random.randrange(400, 2000) for _ in range(count)]
