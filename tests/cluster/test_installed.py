"""Pippin as a wheel, in an environment outside of the checkout: what it holds, and that a node runs from it."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.conftest import BIN, MODEL, ROOT, Cluster

pytestmark = pytest.mark.slow

PACKAGES = ("node", "api")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def run(*command: object, cwd: Path) -> str:
    """Output of a command that must succeed."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(each) for each in command], cwd=cwd, env=clean, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, as setuptools writes into the folder that it builds from."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package)
        (source / package / "__pycache__").mkdir(exist_ok=True)
        (source / package / "__pycache__" / "old.cpython-311.pyc").touch()
    for name in ("scripts", "tests"):
        (source / name).mkdir()
        (source / name / "__init__.py").touch()
    for file in ROOT.glob("*"):
        if file.is_file():
            shutil.copy(file, source)
    run(sys.executable, "-c", BUILD, target, cwd=source)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bin_directory(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel, and of the tests' environment the dependencies only."""
    environment = tmp_path_factory.mktemp("installed") / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=wheel.parent)
    python = environment / "bin" / "python"
    offline = ("--offline", "--no-cache", "--no-deps", "--quiet")
    run(BIN / "uv", "pip", "install", *offline, "--python", python, wheel, cwd=wheel.parent)
    packages = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=wheel.parent).strip()
    )
    # Its own .pth files are not read, so the checkout is not among the environment's packages.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin"


def test_the_wheel_holds_both_packages_and_nothing_else(wheel: Path) -> None:
    files = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*"))
    tracked = {str(path.relative_to(ROOT)) for path in paths if path.is_file() and "__pycache__" not in path.parts}
    assert files == tracked
    assert f"node/builtin/{MODEL}/config.json" in files


def test_a_node_runs_from_it(bin_directory: Path, tmp_path: Path, cluster: Cluster, stock: dict[str, str]) -> None:
    shown = run(bin_directory / "python", "-c", "import node, api; print(node.__file__, api.__file__)", cwd=tmp_path)
    assert all(str(bin_directory.parent) in path for path in shown.split()), shown
    first = cluster.launch("--model", MODEL, "--stages", "2", program=(str(bin_directory / "pippin"), "node"))
    second = cluster.launch()  # from the checkout, which starts sooner
    cluster.ready(first.started(), second.started())
    assert second.chat("Hello").text == stock["Hello"]
    for program in ((bin_directory / "cluster",), (bin_directory / "pippin", "cluster")):
        assert MODEL in run(*program, "status", "--api", first.url, cwd=tmp_path)


def test_pippin_names_its_programs(bin_directory: Path, tmp_path: Path) -> None:
    pippin = bin_directory / "pippin"
    assert "pippin node" in run(pippin, "--help", cwd=tmp_path)
    assert run(pippin, "node", "--version", cwd=tmp_path) == run(bin_directory / "node", "--version", cwd=tmp_path)
    wrong = subprocess.run([str(pippin), "start"], capture_output=True, text=True, timeout=30, check=False)
    assert wrong.returncode == 2
    assert "there is no 'start'" in wrong.stderr
