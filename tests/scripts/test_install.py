"""scripts/install, on machines whose system and Pythons are scripts."""

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import ZipFile

import psutil
import pytest
from packaging.specifiers import SpecifierSet

from tests.conftest import until

ROOT = Path(__file__).parents[2]
TOOLS = ("dirname", "basename", "cat", "cksum", "cp", "grep", "mkdir", "mktemp", "rm", "sed", "sh", "sleep", "tail")
PYTHON = """#!/bin/sh
# A Python of another version and machine: it runs code, makes environments with itself in them, and notes calls of pip.
hang() {{
  if [ -e {root}/hang-$1 ]; then echo $$ > {root}/hangs; fi
  while [ -e {root}/hang-$1 ]; do sleep 0.02; done
}}
case "$1 $2" in
"-c "*)
  shift
  exec {real} -IS -c 'import platform, sys
sys.version_info, sys.platform, platform.machine = {version}, "{system}", lambda: "{machine}"
exec(sys.argv.pop(1))' "$@" ;;
"-m venv")
  rm -rf .venv
  mkdir -p .venv/bin
  cp "$0" .venv/bin/python
  echo "version = {dotted}.1
command = $0 -m venv --clear $(pwd -P)/$4" > .venv/pyvenv.cfg
  hang venv
  echo "made with {version}" >> {calls} ;;
"-m pip")
  hang pip
  wheel=.venv/lib/python3/site-packages/mlx_metal-1.dist-info
  mkdir -p $wheel
  if [ "$SYSTEM_VERSION_COMPAT" = {honoured} ]; then os=26; else os=15; fi
  echo "Tag: py3-none-macosx_$os""_0_arm64" > $wheel/WHEEL
  echo "pip $*" >> {calls} ;;
esac
"""


@dataclass
class Machine:
    """A checkout, and a PATH with the programs that the machine has."""

    root: Path
    system: str = "Darwin"
    version: str = "15.6.1"
    machine: str = "arm64"
    sysctl: dict[str, str] = field(default_factory=dict)
    honoured: str = "0"
    """SYSTEM_VERSION_COMPAT with which its Pythons know the macOS that it has."""

    def __post_init__(self) -> None:
        self.checkout, self.bin, self.calls = self.root / "checkout", self.root / "bin", self.root / "calls"
        for folder in (self.checkout / "scripts", self.checkout / "requirements", self.bin):
            folder.mkdir(parents=True)
        shutil.copy(ROOT / "scripts" / "install", self.checkout / "scripts")
        for file in ("requirements/run.txt", "requirements/pictures.txt", "pyproject.toml"):
            (self.checkout / file).write_text("content\n")
        for name in TOOLS:
            (self.bin / name).symlink_to(str(shutil.which(name)))
        self.program("uname", f"case $1 in -m) echo {self.machine};; *) echo {self.system};; esac")
        self.program("sw_vers", f'[ "$1" = -productVersion ] && echo {self.version}')
        facts = {"machdep.cpu.brand_string": "Apple M4", **self.sysctl}
        answers = "".join(f"{key}) echo '{value}';; " for key, value in facts.items())
        self.program("sysctl", f"case $2 in {answers}*) exit 1;; esac")

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def python(self, name: str, *version: int, machine: str = "arm64") -> None:
        system = {"Darwin": "darwin"}.get(self.system, "linux")
        dotted = ".".join(map(str, version))
        values = {
            "dotted": dotted,
            "real": sys.executable,
            "version": version,
            "system": system,
            "machine": machine,
            "calls": self.calls,
            "root": self.root,
            "honoured": self.honoured,
        }
        self.program(name, PYTHON.format(**values))

    def install(self) -> subprocess.CompletedProcess[str]:
        command = [str(self.checkout / "scripts" / "install")]
        return subprocess.run(
            command, env={"PATH": str(self.bin)}, capture_output=True, text=True, check=False, timeout=60
        )

    @contextlib.contextmanager
    def installing(self, phase: str) -> Iterator[subprocess.Popen[str]]:
        """An installation that has reached this phase, in which it stays."""
        (self.root / f"hang-{phase}").touch()
        (self.root / "hangs").unlink(missing_ok=True)
        command = [str(self.checkout / "scripts" / "install")]
        with subprocess.Popen(
            command, env={"PATH": str(self.bin)}, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            try:
                until((self.root / "hangs").read_text, f"the installation is in {phase}")
                yield process
            finally:
                self.go_on(phase)

    def go_on(self, phase: str) -> None:
        (self.root / f"hang-{phase}").unlink(missing_ok=True)

    def refused(self) -> str:
        done = self.install()
        assert done.returncode == 1, done.stderr
        assert not self.calls.exists()
        return done.stderr

    def installed(self) -> list[str]:
        """Install; return what was done."""
        self.calls.write_text("")
        done = self.install()
        assert done.returncode == 0, done.stderr
        return self.calls.read_text().splitlines()


@pytest.fixture
def mac(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_rosetta_is_refused(tmp_path: Path) -> None:
    translated = {"sysctl.proc_translated": "1", "machdep.cpu.brand_string": "Apple M4"}
    mac = Machine(tmp_path, machine="x86_64", sysctl=translated)
    mac.python("python3.13", 3, 13)
    assert 'clear "Open using Rosetta"' in mac.refused()


def test_intel_is_refused(tmp_path: Path) -> None:
    mac = Machine(tmp_path, machine="x86_64", sysctl={"machdep.cpu.brand_string": "Intel(R) Core(TM) i7-8700B"})
    mac.python("python3.13", 3, 13)
    assert "an Apple chip (M1 or later); this one has: Intel(R) Core(TM) i7-8700B." in mac.refused()


@pytest.mark.parametrize("version", ["13.7.8", "12.6"])
def test_an_old_macos_is_refused(tmp_path: Path, version: str) -> None:
    mac = Machine(tmp_path, version=version)
    mac.python("python3.13", 3, 13)
    assert f"macOS 14 or later, as MLX does; this Mac has macOS {version}." in mac.refused()


@pytest.mark.parametrize(
    ("version", "chip", "is_refused"),
    [
        ("26.0", "Apple M5", True),
        ("26.1.1", "Apple M5 Max", True),
        ("26.2", "Apple M5", False),
        ("26.10", "Apple M5", False),
        ("26.1", "Apple M4", False),
    ],
)
def test_an_m5_with_a_macos_that_mlx_takes_for_another(
    tmp_path: Path, version: str, chip: str, is_refused: bool
) -> None:
    mac = Machine(tmp_path, version=version, sysctl={"machdep.cpu.brand_string": chip})
    mac.python("python3.13", 3, 13)
    if is_refused:
        assert f"macOS 26.2 or later; this Mac has macOS {version}." in mac.refused()
    else:
        assert mac.installed()[0] == "made with (3, 13)"


@pytest.mark.parametrize("version", ["14.0", "26.2"])
def test_a_mac_without_a_python_that_fits(tmp_path: Path, version: str) -> None:
    mac = Machine(tmp_path, version=version)
    assert "Found: none" in mac.refused()
    mac.python("python3", 3, 15)
    mac.python("python", 3, 9)
    told = mac.refused()
    assert f"{mac.bin}/python3 is Python 3.15" in told
    assert f"{mac.bin}/python is Python 3.9" in told


def test_a_python_for_intel_is_passed_over(mac: Machine) -> None:
    mac.python("python3.13", 3, 13, machine="x86_64")
    assert f"{mac.bin}/python3.13 is for Intel processors and runs under Rosetta" in mac.refused()
    mac.python("python3.11", 3, 11)
    assert mac.installed()[0] == "made with (3, 11)"


@pytest.mark.parametrize("minor", [11, 12, 13, 14])
@pytest.mark.parametrize("name", ["python3.{}", "python3", "python"])
def test_pythons_that_fit(mac: Machine, minor: int, name: str) -> None:
    mac.python(name.format(minor), 3, minor)
    made, locked, own = mac.installed()
    assert made == f"made with (3, {minor})"
    assert "--require-hashes --no-deps --requirement requirements/run.txt" in locked
    assert own.endswith("--editable .")
    assert mac.installed() == [], "installed already"


def test_an_editable_install_is_only_a_path(tmp_path: Path) -> None:
    """Python would run a program in its place before each command: slowly, and a Ctrl-C there ends in a traceback."""
    build = "import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = map(ZipFile, tmp_path.glob("*.whl"))
    with wheel:
        (own,) = (name for name in wheel.namelist() if ".dist-info/" not in name)
        assert wheel.read(own).decode().split() == [str(ROOT)]


def test_other_systems_are_not_asked_for_macos(tmp_path: Path) -> None:
    linux = Machine(tmp_path, system="Linux", machine="x86_64", version="1")
    linux.python("python3", 3, 12, machine="x86_64")
    assert linux.installed()[0] == "made with (3, 12)"


def test_a_broken_pyenv_shim_is_passed_over(mac: Machine) -> None:
    mac.program("python3.13", 'echo "pyenv: python3.13: command not found" >&2; exit 127')
    mac.python("python3.14", 3, 14)
    assert mac.installed()[0] == "made with (3, 14)"


def test_another_lock_is_installed_into_the_same_environment(mac: Machine) -> None:
    mac.python("python3.13", 3, 13)
    mac.installed()
    (mac.checkout / "requirements" / "run.txt").write_text("other\n")
    assert ["pip" in call for call in mac.installed()] == [True, True]


def test_a_removed_python_is_noticed(mac: Machine) -> None:
    mac.python("python3.13", 3, 13)
    mac.installed()
    (mac.bin / "python3.13").unlink()
    python = mac.checkout / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/gone/python3.13")
    mac.python("python3.12", 3, 12)
    assert mac.installed()[0] == "made with (3, 12)"
    assert len(mac.installed()) == 0


def test_a_python_that_was_replaced_is_noticed(mac: Machine) -> None:
    mac.python("python3", 3, 12)
    mac.installed()
    mac.python("python3", 3, 13)
    shutil.copy(mac.bin / "python3", mac.checkout / ".venv" / "bin" / "python")  # .venv refers to it by name
    assert mac.installed()[0] == "made with (3, 13)"


def test_a_moved_checkout_is_noticed(mac: Machine) -> None:
    mac.python("python3.13", 3, 13)
    mac.installed()
    moved = mac.root / "moved"
    mac.checkout.rename(moved)
    mac.checkout = moved
    assert mac.installed()[0] == "made with (3, 13)"
    assert mac.installed() == []


def test_the_real_environment_is_whole(tmp_path: Path) -> None:
    """Python notes what the script looks for."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--clear", ".venv"], cwd=tmp_path, check=True)
    script = (ROOT / "scripts" / "install").read_text()
    is_whole = script[script.index("is_whole() {") : script.index("stamp=")]
    command = ["/bin/sh", "-c", f"{is_whole}is_whole"]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
    written, link = tmp_path / ".venv" / "pyvenv.cfg", tmp_path.with_name(f"{tmp_path.name}-link")
    link.symlink_to(tmp_path)
    text = written.read_text()
    written.write_text(text.replace(f"{tmp_path}/.venv", f"{link}/.venv"))
    assert written.read_text() != text
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0, "another path of the same folder"
    moved = tmp_path.rename(tmp_path.with_name(f"{tmp_path.name}-moved"))
    assert subprocess.run(command, cwd=moved, check=False).returncode == 1


# --- interrupted, and at the same time ------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["venv", "pip"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_installation_is_taken_up(mac: Machine, phase: str, number: signal.Signals) -> None:
    """As the terminal interrupts it, with all of its foreground group. What was at work has ended when the script has."""
    mac.python("python3.13", 3, 13)
    with mac.installing(phase) as process:
        at_work = psutil.Process(int((mac.root / "hangs").read_text()))
        os.killpg(process.pid, number)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 130
        assert not at_work.is_running() or at_work.status() == psutil.STATUS_ZOMBIE
    assert said.splitlines()[1:] == ["Stopped. The next start takes the installation up."]
    assert mac.installed()[0] == "made with (3, 13)"
    assert mac.installed() == []


def test_a_killed_installation_is_taken_up_when_its_last_command_has_ended(mac: Machine) -> None:
    mac.python("python3.13", 3, 13)
    with mac.installing("pip") as process:
        process.kill()
        process.wait()
        with subprocess.Popen(
            [str(mac.checkout / "scripts" / "install")], env={"PATH": str(mac.bin)}, stderr=subprocess.PIPE, text=True
        ) as second:
            assert second.stderr
            assert "Installing" in second.stderr.readline()
            assert "Another scripts/install is at work" in second.stderr.readline()
            mac.calls.write_text("")
            mac.go_on("pip")
            assert "Installed" in second.communicate(timeout=60)[1]
    assert "made with (3, 13)" in mac.calls.read_text()


def test_two_at_once(mac: Machine) -> None:
    mac.python("python3.13", 3, 13)
    with mac.installing("pip") as first:
        with subprocess.Popen(
            [str(mac.checkout / "scripts" / "install")], env={"PATH": str(mac.bin)}, stderr=subprocess.PIPE, text=True
        ) as second:
            assert second.stderr
            assert "Installing" in second.stderr.readline()
            assert "Another scripts/install is at work" in second.stderr.readline()
            mac.go_on("pip")
            assert second.communicate(timeout=60)[1] == "", "all is there"
        assert (first.wait(60), second.returncode) == (0, 0)
    assert len(mac.calls.read_text().splitlines()) == 3


def test_a_failure_is_told_with_what_pip_said(mac: Machine) -> None:
    mac.python("python3.13", 3, 13)
    fake = mac.bin / "python3.13"
    fake.write_text(fake.read_text().replace("hang pip", "echo 'ERROR: no route'; exit 1"))
    done = mac.install()
    assert done.returncode == 1
    assert "ERROR: no route" in done.stderr
    mac.python("python3.13", 3, 13)
    assert mac.installed()[0] == "made with (3, 13)"


@pytest.mark.parametrize(("honoured", "tag"), [("0", "macosx_26"), ("never", "macosx_15")])
def test_mlx_s_package_is_that_for_this_macos(tmp_path: Path, honoured: str, tag: str) -> None:
    """A Python that was built for macOS 15 takes 26 for 16, unless SYSTEM_VERSION_COMPAT is 0."""
    mac = Machine(tmp_path, version="26.2", honoured=honoured, sysctl={"machdep.cpu.brand_string": "Apple M5"})
    mac.python("python3.13", 3, 13)
    done = mac.install()
    (wheel,) = mac.checkout.glob(".venv/lib/python3/site-packages/mlx_metal-*.dist-info/WHEEL")
    assert tag in wheel.read_text()
    assert ("package for an older macOS" in done.stderr) == (tag != "macosx_26")


def test_everybody_refuses_the_same_pythons() -> None:
    """pip, pipx and uv by pyproject.toml, scripts/install by itself; and CI runs all that are left."""
    asked = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
    fit = [f"3.{minor}" for minor in range(30) if f"3.{minor}.1" in asked]
    script = (ROOT / "scripts" / "install").read_text()
    least, most = re.findall(r"\((3), (\d+)\)", script)
    assert [f"3.{minor}" for minor in range(int(least[1]), int(most[1]) + 1)] == fit
    assert f"Python {', '.join(fit[:-1])} or {fit[-1]}." in script
    assert f"python: {json.dumps(fit)}" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()
