"""Text of a model: tokenizer, chat template, grammars, and the sandboxes that run untrusted ones. Does not import MLX."""
