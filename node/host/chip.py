"""Names of this machine's chip and system, as shown to users: "Apple M4 Pro", "macOS 26.2"."""

import platform
from pathlib import Path

from node.host.command import output_of


def chip_name() -> str:
    """Name of the chip. Call it once, before gRPC is started: on macOS it starts a subprocess."""
    if platform.system() == "Darwin":
        return output_of("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    return _cpuinfo(Path("/proc/cpuinfo")) or platform.machine()


def system_name() -> str:
    """Operating system and its version."""
    if platform.system() == "Darwin":
        return f"macOS {platform.mac_ver()[0]}"
    return f"{platform.system()} {platform.release()}"


def _cpuinfo(path: Path) -> str:
    """Model name in a cpuinfo file; empty on ARM, where the kernel gives none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return ""
