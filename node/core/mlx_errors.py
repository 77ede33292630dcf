"""Exceptions raised by MLX and mlx-lm, and which of them say that the device failed."""

import re
from enum import StrEnum

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

_FAULT = re.compile(r"\[METAL\] Command buffer execution failed|cu(da)?[A-Z].* failed: (?!out of memory)")
"""Metal's error of work that had begun, and any of CUDA. Where CUDA has no memory for an array, no work was lost."""


class Fault(StrEnum):
    """What an error of the device says of its cause."""

    REFUSED = "refused"
    """macOS refuses all further work of this process, as earlier work failed."""
    TIMEOUT = "timeout"
    """The work took so long that macOS stopped it: the screen has to be drawn, too."""
    MEMORY = "memory"
    """Too little memory for the work."""
    OTHER = "other"


_NAMED = {
    "SubmissionsIgnored": Fault.REFUSED,
    "Ignored (for causing prior": Fault.REFUSED,
    "Impacting Interactivity": Fault.TIMEOUT,
    "Caused GPU Timeout": Fault.TIMEOUT,
    "Insufficient Memory": Fault.MEMORY,
}


def fault_of(error: BaseException | None) -> tuple[Fault, str] | None:
    """Kind and text of the error of a device that caused this exception; None if none did."""
    while error is not None:
        text = str(error)
        if isinstance(error, RuntimeError) and _FAULT.match(text):
            return next((fault for name, fault in _NAMED.items() if name in text), Fault.OTHER), text
        error = error.__cause__
    return None
