"""Bytes as people write and read them.

Binary everywhere: `GB` is 2**30 bytes, in what we parse as in what we print, because that is how memory is sold and how
macOS shows it: a 16 GB Mac reads 16.0 GB here too. `GiB` means the same.
"""

import re

_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
_FACTORS: dict[str, int] = {unit: 1024**power for power, unit in enumerate(_UNITS)}
_FACTORS |= {f"{letter}IB": 1024**power for power, letter in enumerate("KMGTP", start=1)}
_FACTORS |= {letter: 1024**power for power, letter in enumerate("KMGTP", start=1)}

_AMOUNT = re.compile(r"(?P<whole>[0-9]{1,18})(?P<part>\.[0-9]{1,9})?\s*(?P<unit>[A-Z]*)")


def parse_bytes(text: str) -> int:
    """Bytes from "64MB", "4 gb", "1.5GiB", "4G" (as 4GB) or plain "65536".

    Raises ValueError, with a message for people, on anything else.
    """
    match = _AMOUNT.fullmatch(text.strip().upper())
    factor = _FACTORS.get(match["unit"] or "B") if match else None
    if match is None or factor is None or (match["part"] and factor == 1):
        raise ValueError(f"{text!r} is no number of bytes. Write it like 64MB, 4GB or 1.5GiB.")
    nano = int((match["part"] or ".")[1:].ljust(9, "0"))  # whole numbers all through: floats would round large ones
    return int(match["whole"]) * factor + nano * factor // 10**9


def unit_of(count: int) -> str:
    """The unit in which `count` reads best: the largest of which there is one, once rounded to a decimal place."""
    return next((unit for unit in reversed(_UNITS) if count >= 0.99995 * _FACTORS[unit]), "B")


def format_bytes(count: int, unit: str = "") -> str:
    """As "9.8 GB" or "512 B"; in the given unit, or in the one that reads best."""
    unit = unit or unit_of(count)
    return f"{count} B" if unit == "B" else f"{count / _FACTORS[unit]:.1f} {unit}"


def format_share(part: int, whole: int) -> str:
    """As "9.8 of 16.0 GB": both in the whole's unit."""
    unit = unit_of(whole)
    return f"{format_bytes(part, unit).removesuffix(f' {unit}')} of {format_bytes(whole, unit)}"
