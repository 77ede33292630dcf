"""The name of this machine's chip, for people: "Apple M4 Pro"."""

import platform
import subprocess
from pathlib import Path


def chip_name() -> str:
    """Called once, before gRPC is up: on macOS it starts a subprocess."""
    if platform.system() == "Darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.machine()
    return _cpuinfo(Path("/proc/cpuinfo")) or platform.machine()


def _sysctl(name: str) -> str:
    command = ["/usr/sbin/sysctl", "-n", name]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""


def _cpuinfo(path: Path) -> str:
    """ARM kernels name no model; then it is empty."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return ""
