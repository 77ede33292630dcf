"""Name of this machine in its tailnet, the private network of Tailscale or Headscale."""

import json
import shutil

from node.host.command import output_of

_MAC_APP = "/Applications/Tailscale.app/Contents/MacOS/Tailscale"


def tailnet_name() -> str:
    """Such as mini-1.tail1234.ts.net, in lower case; empty without Tailscale, or while it does not run.

    Only this machine's own Tailscale is asked. DNS could be told to answer with any name.
    """
    program = shutil.which("tailscale") or shutil.which(_MAC_APP)
    try:
        status = json.loads(output_of(program, "status", "--json", "--peers=false")) if program else {}
        name = status["Self"]["DNSName"] if status.get("BackendState") == "Running" else ""
    except (ValueError, LookupError, TypeError, AttributeError):  # of another version
        return ""
    return name.rstrip(".").lower() if isinstance(name, str) else ""
