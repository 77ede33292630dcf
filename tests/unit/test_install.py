"""scripts/install, on machines whose system and Pythons are scripts."""

import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("dirname", "basename", "cat", "cksum", "cp", "grep", "mkdir", "rm", "sh")
PYTHON = """#!/bin/sh
# A Python of another version and machine: it runs code, makes environments with itself in them, and notes calls of pip.
case "$1 $2" in
"-c "*)
  exec {real} -IS -c 'import platform, sys
sys.version_info, sys.platform, platform.machine = {version}, "{system}", lambda: "{machine}"
exec(sys.argv[1])' "$2" ;;
"-m venv")
  rm -rf .venv
  mkdir -p .venv/bin
  cp "$0" .venv/bin/python
  echo "version = {dotted}.1
command = $0 $* | $(pwd -P)/$4" > .venv/pyvenv.cfg
  echo "made with {version}" >> {calls} ;;
"-m pip") echo "pip $*" >> {calls} ;;
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

    def __post_init__(self) -> None:
        self.checkout, self.bin, self.calls = self.root / "checkout", self.root / "bin", self.root / "calls"
        for folder in (self.checkout / "scripts", self.checkout / "requirements", self.bin):
            folder.mkdir(parents=True)
        shutil.copy(ROOT / "scripts" / "install", self.checkout / "scripts")
        for file in ("requirements/run.txt", "pyproject.toml"):
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
        }
        self.program(name, PYTHON.format(**values))

    def install(self) -> subprocess.CompletedProcess[str]:
        command = [str(self.checkout / "scripts" / "install")]
        return subprocess.run(
            command, env={"PATH": str(self.bin)}, capture_output=True, text=True, check=False, timeout=60
        )

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
    assert "--require-hashes --requirement requirements/run.txt" in locked
    assert own.endswith("--editable .")
    assert mac.installed() == [], "installed already"


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
    is_whole = script[script.index("is_whole() {") : script.index("if ! is_whole")]
    command = ["/bin/sh", "-c", f"{is_whole}is_whole"]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
    moved = tmp_path.rename(tmp_path.with_name(f"{tmp_path.name}-moved"))
    assert subprocess.run(command, cwd=moved, check=False).returncode == 1
