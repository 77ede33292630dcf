"""The permission that macOS 15 and later demand of programs that use the local network."""

import errno
import os
import platform

NO_ROUTE = os.strerror(errno.EHOSTUNREACH)
"""The system's words for connections that lack the permission; on a Mac, errno 65."""


def local_network_hint() -> str:
    """What to do about connections that fail with NO_ROUTE, or about multicast that fails; empty if not on a Mac.

    Without the permission macOS drops the packets of a program: Apple's TN3179, "Understanding local network privacy".
    """
    if platform.system() != "Darwin":
        return ""
    return (
        "On a Mac this also happens to programs that may not use the local network: in System Settings > Privacy & "
        "Security > Local Network, allow the program that started this one (docs/mac.md says which)."
    )
