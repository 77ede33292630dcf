"""The firewall of macOS, which blocks connections by the program that they lead to."""

import platform
import re
import subprocess
import sys
from pathlib import Path

_PROGRAM = "/usr/libexec/ApplicationFirewall/socketfilterfw"
_OFF, _ON, _BLOCKS_ALL = "0", "1", "2"


def blocked_program() -> str:
    """Path of this Python if the firewall blocks connections to it; else empty.

    Call it before gRPC is started: it starts subprocesses.
    """
    if platform.system() != "Darwin":
        return ""
    python = str(Path(sys.executable).resolve())
    found = re.search(r"State = (\d)", _ask("--getglobalstate"))
    state = found[1] if found else _OFF
    is_blocked = state == _BLOCKS_ALL or (state == _ON and "is blocked" in _ask("--getappblocked", python))
    return python if is_blocked else ""


def _ask(*arguments: str) -> str:
    try:
        done = subprocess.run([_PROGRAM, *arguments], capture_output=True, text=True, timeout=5, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
