"""Parses and formats numbers of bytes, and formats durations.

Units are binary: `GB` is 2**30 bytes, as memory is sold and as macOS shows it, and `GiB` means the same. So a Mac of
16 GB is shown with 16.0 GB.
"""

import re

_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
_FACTORS: dict[str, int] = {unit: 1024**power for power, unit in enumerate(_UNITS)}
_FACTORS |= {f"{letter}IB": 1024**power for power, letter in enumerate("KMGTP", start=1)}
_FACTORS |= {letter: 1024**power for power, letter in enumerate("KMGTP", start=1)}

_AMOUNT = re.compile(r"(?P<whole>[0-9]{1,18})(?P<part>\.[0-9]{1,9})?\s*(?P<unit>[A-Z]*)")


def parse_bytes(text: str) -> int:
    """Parse "64MB", "4 gb", "1.5GiB", "4G" (as 4GB) or plain "65536".

    Raises ValueError, whose message is shown to users.
    """
    match = _AMOUNT.fullmatch(text.strip().upper())
    factor = _FACTORS.get(match["unit"] or "B") if match else None
    if match is None or factor is None or (match["part"] and factor == 1):
        raise ValueError(f"{text!r} is not a number of bytes. Write it like 64MB, 4GB or 1.5GiB.")
    nano = int((match["part"] or ".")[1:].ljust(9, "0"))  # integers, as floats would round large numbers
    return int(match["whole"]) * factor + nano * factor // 10**9


def unit_of(count: int) -> str:
    """The largest unit of which `count` is at least 1, rounded to one decimal place."""
    return next((unit for unit in reversed(_UNITS) if count >= 0.99995 * _FACTORS[unit]), "B")


def format_bytes(count: int, unit: str = "") -> str:
    """Format like "9.8 GB" or "512 B", in the given unit or in that of `unit_of`."""
    unit = unit or unit_of(count)
    return f"{count} B" if unit == "B" else f"{count / _FACTORS[unit]:.1f} {unit}"


def format_share(part: int, whole: int) -> str:
    """Format like "9.8 of 16.0 GB", both in the unit of `whole`."""
    unit = unit_of(whole)
    return f"{format_bytes(part, unit).removesuffix(f' {unit}')} of {format_bytes(whole, unit)}"


def format_download(done: int, total: int, bytes_per_s: float) -> str:
    """Format like "1.2 of 4.6 GB, 80.0 MB/s, 43 s left"; without a rate, like "1.2 of 4.6 GB"."""
    share = format_share(done, total)
    if not bytes_per_s:
        return share
    left = format_duration((total - done) / bytes_per_s)
    return f"{share}, {format_bytes(round(bytes_per_s))}/s, {left} left"


def format_duration(seconds: float) -> str:
    """Format like "43 s", "12 min" or "3.5 h"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"
