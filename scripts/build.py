#!/usr/bin/env python3
"""Builds the wheel and the source distribution of a commit: the same bytes wherever, whenever and by whom it is done.

    scripts/build.py OUT             of HEAD, with a file of checksums beside them

Only committed files are read. The backend is setuptools of this environment, whose version requirements/run.txt has.
"""

import argparse
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = "import sys; from setuptools import build_meta as b; out = sys.argv[1]; b.build_sdist(out); b.build_wheel(out)"
CHECKSUMS = "SHA256SUMS"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of what is built")
    out = parser.parse_args().out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    made = build(ROOT, out)
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made)
    (out / CHECKSUMS).write_text(sums)
    print(sums, end="")


def build(repository: Path, out: Path) -> list[Path]:
    """Build HEAD of the repository into the folder `out`. Returns both files."""
    commit = int(_git(repository, "log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "source", Path(folder) / "made"
        made.mkdir()
        with tarfile.open(fileobj=io.BytesIO(_git(repository, "archive", "HEAD"))) as tree:
            tree.extractall(source, filter="data")
        for path in source.rglob("*"):
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(commit)}
        command = [sys.executable, "-c", BUILD, str(made)]
        subprocess.run(command, cwd=source, env=environment, check=True, stdout=subprocess.DEVNULL, umask=0o022)
        (sdist,), (wheel,) = made.glob("*.tar.gz"), made.glob("*.whl")
        (out / sdist.name).write_bytes(_repacked(sdist, commit))
        (out / wheel.name).write_bytes(wheel.read_bytes())
    return [out / sdist.name, out / wheel.name]


def _git(repository: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=repository, check=True, capture_output=True).stdout


def _repacked(sdist: Path, seconds: int) -> bytes:
    """Setuptools writes the times and the user of this machine into a source distribution."""
    packed = io.BytesIO()
    with (
        tarfile.open(sdist) as old,
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=seconds) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            member.mtime, member.pax_headers = seconds, {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return packed.getvalue()


if __name__ == "__main__":
    main()
