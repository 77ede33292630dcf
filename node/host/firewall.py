"""The firewall of macOS, which blocks connections by the program that they lead to."""

import platform
import re
import subprocess

from node.host.mac_program import bundle, executable

_PROGRAM = "/usr/libexec/ApplicationFirewall/socketfilterfw"
_OFF, _ON, _BLOCKS_ALL = "0", "1", "2"


def blocked_program() -> str:
    """Path of this Python, as the firewall lists it, if it blocks connections to it; else empty.

    Call it before gRPC is started: it starts subprocesses.
    """
    if platform.system() != "Darwin":
        return ""
    program = executable()
    found = re.search(r"State = (\d)", _ask("--getglobalstate"))
    state = found[1] if found else _OFF
    listed = bundle(program)
    if state == _ON:
        is_blocked = any("is blocked" in _ask("--getappblocked", str(each)) for each in {program, listed})
    else:
        is_blocked = state == _BLOCKS_ALL
    return str(listed) if is_blocked else ""


def _ask(*arguments: str) -> str:
    try:
        done = subprocess.run([_PROGRAM, *arguments], capture_output=True, text=True, timeout=5, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
