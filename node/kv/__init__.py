"""KV by its content: blocks of 256 tokens, on this node's disk. No MLX, no network."""
