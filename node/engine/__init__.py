"""MLX: the compute thread, cutting models, caches, steps, sampling. No other room imports MLX."""
