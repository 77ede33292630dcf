"""Starts the server of the sandboxes under macOS's Seatbelt, which refuses native code, too.

Its profile holds for the server and all of its sandboxes: no file of users, no network, no other program. It does not
know the one folder of a sandbox: all tokenizers' private folders are open to it.
"""

import logging
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import node
from node.text.sandbox_server import IMPORTED, IMPORTS_S
from node.text.tokenizer_files import PREFIX

log = logging.getLogger(__name__)

EXECUTABLE = Path("/usr/bin/sandbox-exec")


def command(executable: Path = EXECUTABLE) -> list[str]:
    """The beginning of a command that confines what follows; empty where there is no Seatbelt, or Python fails in it."""
    if not executable.exists():
        return []
    confined = [str(executable), "-p", profile()]
    attempt = [*confined, sys.executable, "-P", "-c", f"import {', '.join(IMPORTED)}"]
    try:
        subprocess.run(attempt, check=True, capture_output=True, timeout=IMPORTS_S)  # noqa: S603 - this very program
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", b"") or str(error).encode()
        log.warning(
            "Sandboxes run without macOS's Seatbelt, as Python fails in it: %s", told[-500:].decode(errors="replace")
        )
        return []
    return confined


def profile() -> str:
    """In Seatbelt's language, in which the last rule that fits decides."""
    temporary = Path(tempfile.gettempdir()).resolve()
    homes = [Path(path) for path in ("/Users", "/Volumes", "/private/var/root")]
    programs = {Path(path).resolve() for path in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    code = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    readable = sorted({*programs, *code, *(Path(path).resolve() for path in node.__path__)})
    pattern = re.sub(r"[^\w/-]", lambda found: f"[{found[0]}]", str(temporary))
    return "\n".join(
        [
            "(version 1)",
            "(allow default)",
            "(deny network*)",
            "(deny signal)",
            "(allow signal (target self))",
            "(deny process-exec*)",
            f"(allow process-exec* {_beneath(sorted(programs))})",
            f"(deny file-read-data {_beneath([*homes, Path.home().resolve(), temporary])})",
            f"(allow file-read-data {_beneath(readable)})",
            f"(allow file-read-data {' '.join(_rule('literal', Path(path).resolve().parent) for path in node.__path__)})",
            "(deny file-write*)",
            f'(allow file-read* file-write* (regex #"^{pattern}/{PREFIX}"))',
            '(allow file-write* (literal "/dev/null"))',
        ]
    )


def _beneath(paths: list[Path]) -> str:
    return " ".join(_rule("subpath", path) for path in paths)


def _rule(kind: str, path: Path) -> str:
    """`kind`: subpath, or literal for a folder's own list only, by which Python finds the package of a clone."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'({kind} "{escaped}")'
