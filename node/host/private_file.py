"""Files that only their user may know and change: keys and the secret. As ssh does, a node refuses a user's otherwise."""

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

_WRITES = stat.S_IWGRP | stat.S_IWOTH
_RIGHTS = {stat.S_IRGRP | stat.S_IROTH: "read", _WRITES: "change"}


def exposed(descriptor: int, path: Path) -> str:
    """What other users of this machine can do to an open file; empty if nothing.

    Who may read a file of another user, such as one that Docker or systemd gives to a service, is for its owner to say.
    """
    found = os.fstat(descriptor)
    judged = _RIGHTS if found.st_uid == os.getuid() else {_WRITES: _RIGHTS[_WRITES]}
    can = [what for rights, what in judged.items() if found.st_mode & rights]
    return f"Other users of this machine can {' and '.join(can)} {path}" if can else ""


def protect(descriptor: int, path: Path) -> None:
    """Take an open file of this program from other users. Volumes such as exFAT and SMB keep no permissions: the log
    says so then.
    """
    if others := exposed(descriptor, path):
        with suppress(OSError):
            os.fchmod(descriptor, 0o600)
        kept = exposed(descriptor, path)
        log.warning("%s%s", others, ", as this volume keeps no permissions" if kept else " no longer, but until now")


def repair(path: Path) -> str:
    """What to do about an exposed file."""
    return f"If nobody has done so: chmod 600 {path}"
