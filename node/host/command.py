"""What a program of the system prints."""

import subprocess


def output_of(*command: str) -> str:
    """Without blanks at its ends; empty if the program is missing, fails or takes more than 5 s.

    Call it before gRPC is started, which does not survive that macOS makes a process.
    """
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
