"""The id that this machine's system keeps for it: another one means another machine."""

import os
import platform
import re
from pathlib import Path

from node.host.command import output_of

_MACHINE_ID = Path("/etc/machine-id")
_CONTAINER_SIGNS = (Path("/.dockerenv"), Path("/run/.containerenv"), Path("/run/systemd/container"))
_CONTAINER_VARIABLES = ("container", "KUBERNETES_SERVICE_HOST")


def machine_id() -> str:
    """Empty if the system tells none. Call it before gRPC is started: on macOS it starts a subprocess.

    In a container it is empty, too: `/etc/machine-id` is its image's there, so that many machines may have one, or one several.
    """
    if platform.system() == "Darwin":
        shown = output_of("/usr/sbin/ioreg", "-rd1", "-c", "IOPlatformExpertDevice")
        found = re.search(r'"IOPlatformUUID" = "([\w-]+)"', shown)
        return found[1] if found else ""
    if any(sign.exists() for sign in _CONTAINER_SIGNS) or any(name in os.environ for name in _CONTAINER_VARIABLES):
        return ""
    try:
        return _MACHINE_ID.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
