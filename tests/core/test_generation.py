"""What people are told of a prompt's progress."""

from node.core.generation import PromptProgress


def test_how_far_a_prompt_is():
    progress = PromptProgress(1280, 4096)
    assert progress.told(21.2) == "prompt: 1280 of 4096 tokens, 21.2 tokens/s, 2 min left"
    assert progress.told(5120.0) == "prompt: 1280 of 4096 tokens, 5120 tokens/s, 1 s left"
    assert progress.told(0.0) == progress.told(-3.0) == "prompt: 1280 of 4096 tokens", "it was computed anew elsewhere"
