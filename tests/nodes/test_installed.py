"""Pippin as a wheel, in an environment outside of the checkout: what it holds, and a newcomer's first quarter of an hour
with it.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.browser import Tab
from tests.conftest import BIN, MODEL, PATIENCE_S, ROOT, Cluster, Node
from tests.nodes.hub import ID, demo_hub, of_hub, weights

pytestmark = pytest.mark.slow

PACKAGES = ("node", "api")
QUESTION = "Tell me a long story about a cat."
"""Its answer takes some seconds."""
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def run(*command: object, cwd: Path) -> str:
    """Output of a command that must succeed."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        env=clean,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
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
    node = cluster.launch("--model", MODEL, program=(str(bin_directory / "pippin"), "node")).started()
    cluster.ready(node)
    for program in ((bin_directory / "cluster",), (bin_directory / "pippin", "cluster")):
        shown = run(*program, "run", "--api", node.url, "--temperature", "0", MODEL, "Hello", cwd=tmp_path)
        assert shown == f"{stock['Hello']}\n"


async def test_a_newcomers_story(bin_directory: Path, tmp_path: Path, cluster: Cluster, tab: Tab) -> None:
    """Two nodes find each other, a model comes from the hub and is split, and an answer outlives one of the nodes."""

    def start(name: str) -> Node:
        environment = of_hub(hub, tmp_path / f"{name}-home")
        return cluster.launch(name=name, program=(str(bin_directory / "node"),), environment=environment).started()

    async def command(*arguments: str) -> str:
        name, *more = arguments
        return await asyncio.to_thread(run, bin_directory / "cluster", name, "--api", first.url, *more, cwd=tmp_path)

    with demo_hub() as hub:
        first = await asyncio.to_thread(start, "mini-1")
        await tab.open(first.url)
        await tab.until("document.querySelector('#summary').innerText.startsWith('idle, 1 node')")
        second = await asyncio.to_thread(start, "mini-2")
        await tab.until("document.querySelectorAll('.node:not(.gone)').length === 2", "both are seen")
        assert ID in await command("pull", ID)
        assert weights(tmp_path / "mini-1-home")
    fetched = len(hub.log)

    assert f"{ID} is loaded" in await command("load", ID, "--stages", "2")
    assert len(hub.log) == fetched
    assert not weights(tmp_path / "mini-2-home")
    assert list((tmp_path / "mini-2" / "fetched").rglob("*.safetensors")), "the second has its layers from the first"
    await tab.until("document.querySelectorAll('.band .layers').length === 2", "the page shows both stages")

    await tab.until(f"document.querySelector('#model').value === '{ID}'", "the chat is with the loaded model")
    await tab.click(".settings summary")
    await tab.write("#temperature", "0")
    await tab.write("#prompt", QUESTION)
    await tab.press("Enter")
    await tab.until("document.querySelector('.assistant > .text')?.innerText.length > 20", "the answer has begun")
    complete = "document.querySelector('.assistant > .actions:not([hidden])') !== null"
    second.kill()
    assert not await tab.evaluate(complete), "it has more to say"
    await tab.until("document.querySelector('.node.gone .name')?.innerText === 'mini-2'", "mini-2 is grey")
    await tab.until(complete, "the answer is complete")
    undisturbed = await command("run", ID, "--temperature", "0", QUESTION)
    assert (await tab.text(".assistant > .text")).split() == undisturbed.split()
    assert await tab.text(".assistant > .error") == ""
    assert "tokens/s" in await tab.text(".figures")
    assert tab.complaints == []


def test_pippin_names_its_programs(bin_directory: Path, tmp_path: Path) -> None:
    pippin = bin_directory / "pippin"
    assert "pippin node" in run(pippin, "--help", cwd=tmp_path)
    assert run(pippin, "node", "--version", cwd=tmp_path).startswith("pippin ")
    wrong = subprocess.run([str(pippin), "start"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert wrong.returncode == 2
    assert "pippin: argument COMMAND: invalid choice: 'start' (choose from chat, run, " in wrong.stderr
    assert wrong.stderr.endswith("See pippin --help\n")
    assert run(pippin, "secret", "new", cwd=tmp_path).strip()
    assert run(pippin, "status", "--help", cwd=tmp_path).startswith("Usage: pippin status ")
