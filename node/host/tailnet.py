"""Name of this machine in its tailnet, the private network of Tailscale or Headscale."""

import json
import os
import shutil

from node.host.command import output_of

_MAC_APP = "/Applications/Tailscale.app/Contents/MacOS/Tailscale"
_FOLDERS = ("/usr/local/bin", "/opt/homebrew/bin")
"""Of programs that launchd does not look for."""


def tailnet_name() -> str:
    """Such as mini-1.tail1234.ts.net, in lower case; empty without Tailscale, or while it does not run.

    Only this machine's own Tailscale is asked. DNS could be told to answer with any name.
    """
    folders = os.pathsep.join((os.environ.get("PATH", os.defpath), *_FOLDERS))
    program = shutil.which("tailscale", path=folders) or shutil.which(_MAC_APP)
    # Tailscale's program for Macs is both the app and the command, and would open the app without a terminal.
    as_command = {"TAILSCALE_BE_CLI": "1", "TERM": "dumb"}
    try:
        told = output_of(program, "status", "--json", "--peers=false", more=as_command) if program else "{}"
        status = json.loads(told)
        name = status["Self"]["DNSName"] if status.get("BackendState") == "Running" else ""
    except (ValueError, LookupError, TypeError, AttributeError):  # of another version
        return ""
    return name.rstrip(".").lower() if isinstance(name, str) else ""
