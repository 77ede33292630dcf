"""Files that only their user may know and change: keys and the secret. As ssh does, a node refuses them otherwise."""

import os
import stat
from pathlib import Path

_RIGHTS = {stat.S_IRGRP | stat.S_IROTH: "read", stat.S_IWGRP | stat.S_IWOTH: "change"}


def exposed(descriptor: int, path: Path) -> str:
    """What other users of this machine can do to an open file; empty if nothing."""
    mode = os.fstat(descriptor).st_mode
    can = [what for rights, what in _RIGHTS.items() if mode & rights]
    return f"Other users of this machine can {' and '.join(can)} {path}" if can else ""


def repair(path: Path) -> str:
    """What to do about an exposed file."""
    return f"If nobody has done so: chmod 600 {path}"
