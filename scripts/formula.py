#!/usr/bin/env python3
"""Prints a Homebrew formula that installs a wheel of Pippin with the packages of requirements/run.txt and pictures.txt, by their hashes.

    scripts/formula.py dist/pippin-0.1.0-py3-none-any.whl REPOSITORY > Formula/pippin.rb

REPOSITORY is the address of the repository, whose release of this version has the wheel. The packages are those that pip
finds for this system and this Python, on a Mac for macOS 14. Nothing is installed.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LOCKS = [Path(__file__).resolve().parents[1] / "requirements" / name for name in ("run.txt", "pictures.txt")]
NOT_RUN = {"setuptools"}
"""It only builds Pippin."""
FORMULA = """\
class Pippin < Formula
  desc "Turn the Macs on one network into one OpenAI-compatible endpoint"
  homepage "{repository}"
  url "{repository}/releases/download/v{version}/{wheel}", using: :nounzip
  sha256 "{sha256}"
  license "Apache-2.0"

  depends_on arch: :arm64
  depends_on macos: :sonoma
  depends_on "python@{python}"

{resources}
  def install
    resources.each {{ |package| package.stage buildpath }}
    system "python{python}", "-m", "venv", libexec
    system libexec/"bin/python", "-m", "pip", "install", "--no-index", "--no-deps", *buildpath.glob("*.whl")
    # Its program `node` would take the place of Node.js: it is `pippin node` here.
    bin.install_symlink libexec/"bin/pippin", libexec/"bin/cluster"
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/pippin --version")
  end
end
"""
RESOURCE = """\
  resource "{name}" do
    url "{url}", using: :nounzip
    sha256 "{sha256}"
  end
"""


def main() -> None:
    wheel, repository = Path(sys.argv[1]), sys.argv[2]
    print(formula(wheel, repository, packages()), end="")


def packages() -> list[dict[str, Any]]:
    """What pip would install, as its report describes it."""
    mac = ["--platform", "macosx_14_0_arm64"] if sys.platform == "darwin" else []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
        command += ["--only-binary=:all:", "--require-hashes", "--target", folder, "--report", str(report), *mac]
        given = [argument for lock in LOCKS for argument in ("-r", str(lock))]
        subprocess.run([*command, *given], check=True, stdout=sys.stderr)
        found: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    return [each for each in found if each["metadata"]["name"] not in NOT_RUN]


def formula(wheel: Path, repository: str, found: list[dict[str, Any]]) -> str:
    """`repository`: its address. `found`: the packages, as `packages` returns them."""
    resources = [
        RESOURCE.format(
            name=_as_in_address(each),
            url=each["download_info"]["url"],
            sha256=each["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for each in sorted(found, key=lambda each: _as_in_address(each).lower())
    ]
    return FORMULA.format(
        repository=repository,
        version=wheel.name.split("-")[1],
        wheel=wheel.name,
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        resources="\n".join(resources),
    )


def _as_in_address(package: dict[str, Any]) -> str:
    """Its name as `brew audit` wants it: that of its page on PyPI."""
    return str(package["metadata"]["name"]).replace("_", "-")


if __name__ == "__main__":
    main()
