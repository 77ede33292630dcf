"""Exceptions raised by MLX and mlx-lm."""

MLX_ERRORS = (
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
"""MLX raises them for too little memory and wrong shapes; mlx-lm, which checks little, for unexpected model files."""
