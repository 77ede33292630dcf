"""What a release has: the wheel and the source distribution of scripts/build.py, and the formula of scripts/formula.py."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHEEL = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def clone(target: Path) -> Path:
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(target)], check=True)
    shutil.copy(ROOT / "scripts" / "build.py", target / "scripts")  # as it is here, committed or not
    return target


def build(checkout: Path, out: Path, umask: int, **environment: str) -> dict[str, bytes]:
    command = [sys.executable, str(checkout / "scripts" / "build.py"), str(out)]
    subprocess.run(command, check=True, capture_output=True, umask=umask, env={**os.environ, **environment})
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.mark.slow
def test_builds_at_other_places_and_times_are_the_same_bytes(tmp_path: Path) -> None:
    one, other = clone(tmp_path / "one"), clone(tmp_path / "deeper" / "another name")
    for number, path in enumerate(sorted(other.rglob("*.py"))):
        os.utime(path, (1.5e9 + number, 1.5e9 + number))
    (other / "node" / "left_over.py").write_text("not committed")
    made = build(one, tmp_path / "made", 0o022)
    assert made == build(other, tmp_path / "again", 0o077, TZ="Asia/Tokyo", HOME=str(tmp_path), SOURCE_DATE_EPOCH="7")
    sdist, wheel = sorted(name for name in made if name != "SHA256SUMS")[::-1]
    sums = dict(line.split("  ")[::-1] for line in made["SHA256SUMS"].decode().splitlines())
    assert sums == {name: hashlib.sha256(made[name]).hexdigest() for name in (sdist, wheel)}

    with tarfile.open(tmp_path / "made" / sdist) as packed:
        assert {(each.uid, each.uname) for each in packed} == {(0, "")}
        tops = {each.name.split("/")[1] for each in packed if "/" in each.name}
        assert tops == {
            "LICENSE",
            "PKG-INFO",
            "README.md",
            "api",
            "node",
            "pippin.egg-info",
            "pyproject.toml",
            "setup.cfg",
        }
        packed.extractall(tmp_path, filter="data")
    seconds = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=one, capture_output=True, text=True, check=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": seconds.stdout.strip()}
    folder, target = tmp_path / sdist.removesuffix(".tar.gz"), tmp_path / "from-sdist"
    subprocess.run(
        [sys.executable, "-c", WHEEL, str(target)], cwd=folder, env=environment, check=True, capture_output=True
    )
    assert (target / wheel).read_bytes() == made[wheel]


def test_the_formula_has_the_wheel_and_each_locked_package_by_its_hash(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from formula import formula

    wheel = tmp_path / "pippin-1.2.3-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    found = [
        {
            "metadata": {"name": name},
            "download_info": {
                "url": f"https://example.org/{name}-1.whl",
                "archive_info": {"hashes": {"sha256": name * 8}},
            },
        }
        for name in ("mlx_lm", "mlx", "Aiohttp")
    ]
    text = formula(wheel, "https://example.org/pippin", found)
    assert 'url "https://example.org/pippin/releases/download/v1.2.3/pippin-1.2.3-py3-none-any.whl"' in text
    assert f'sha256 "{hashlib.sha256(b"wheel").hexdigest()}"' in text
    assert text.index('resource "Aiohttp"') < text.index('resource "mlx"') < text.index('sha256 "mlxmlx')
    assert 'resource "mlx-lm"' in text, "as `brew audit` wants it"
    assert 'bin/"node"' not in text
    if ruby := shutil.which("ruby"):
        (tmp_path / "pippin.rb").write_text(text)
        subprocess.run([ruby, "-c", str(tmp_path / "pippin.rb")], check=True, capture_output=True)
