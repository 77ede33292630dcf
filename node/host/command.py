"""What a program of the system prints."""

import os
import subprocess
from collections.abc import Mapping
from types import MappingProxyType


def output_of(*command: str, more: Mapping[str, str] = MappingProxyType({})) -> str:
    """Without blanks at its ends; empty if the program is missing, fails or takes more than 5 s. `more`: of its environment.

    Call it before gRPC is started, which does not survive that macOS makes a process.
    """
    try:
        environment = {**os.environ, **more}
        ran = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True, env=environment)  # noqa: S603
        return ran.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
