"""What macOS takes this program for, in its firewall and in its privacy settings."""

import platform
from pathlib import Path

import psutil


def executable() -> Path:
    """The file that runs. On a Mac it is not `sys.executable`: `bin/python3` of Homebrew and of python.org only starts the
    one in Python.app.
    """
    return Path(psutil.Process().exe())


def bundle(program: Path) -> Path:
    """The application that the program belongs to, under whose name macOS lists it; the program itself if there is none."""
    return next((folder for folder in program.parents if folder.suffix == ".app"), program)


def full_disk_access_hint() -> str:
    """What to do about a folder of models that macOS keeps from programs that it starts by itself; empty if not on a Mac."""
    if platform.system() != "Darwin":
        return ""
    return (
        f"In System Settings > Privacy & Security > Full Disk Access, add {bundle(executable())} and start the node "
        "again, or keep the models elsewhere."
    )
