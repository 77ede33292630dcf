"""KV by its content: blocks of 256 tokens, on this node's disk and those of the others. No MLX."""
