"""A model's text: tokens, chat templates, grammars, and the sandboxes in which strangers' texts are compiled. Free of MLX."""
