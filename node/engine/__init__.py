"""Computes with MLX: compute thread, partial models, caches, steps, sampling. No other package imports MLX."""
