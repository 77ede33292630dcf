"""Name of this machine, as shown to users: "mini-1"."""

import functools
import platform
import re
import socket


@functools.cache
def machine_name() -> str:
    """Without a domain, of letters, digits and `.-_`.

    On a Mac it is the name that Bonjour keeps unique on the network: the host's own is "Mac" on many.
    """
    name = socket.gethostname()
    if platform.system() == "Darwin":
        from node.host.command import output_of  # noqa: PLC0415 - its imports take a while

        name = output_of("/usr/sbin/scutil", "--get", "LocalHostName") or name
    return re.sub(r"[^\w.-]+", "-", name.partition(".")[0]).strip("-") or "node"
