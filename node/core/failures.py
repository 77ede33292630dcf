"""What the code of MLX and mlx-lm raises."""

FAILURES = (
    RuntimeError,
    ValueError,
    MemoryError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    NameError,
    ImportError,
    OSError,
    StopIteration,
)
"""MLX: out of memory, shapes that do not fit. mlx-lm, which checks little itself: whatever Python raises when a model meets
what it does not know."""
