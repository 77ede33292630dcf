"""Which library multiplies matrices on the CPU."""

import platform
from pathlib import Path

import mlx.core as mx
import pytest

from node.engine.device import has_slow_blas, tuned_blas

WHEEL = "7f00-7f01 r-xp 00000000 08:01 1234   /home/publisher/.venv/mlx_cpu.libs/libblas-bd8a282c.so.3.10.0\n"
NAMELESS = "7f02-7f03 rw-p 00000000 00:00 0\n"


@pytest.fixture
def maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(mx, "default_device", lambda: mx.cpu)
    return tmp_path / "maps"


@pytest.mark.parametrize(
    ("preloaded", "slow"),
    [
        ("", True),
        ("/usr/lib/x86_64-linux-gnu/blis-pthread/libblas.so.3", False),
        ("/usr/lib/x86_64-linux-gnu/libopenblasp-r0.3.21.so", False),
        ("/usr/lib/x86_64-linux-gnu/libatomic.so.1", True),
    ],
)
def test_the_reference_blas_of_the_wheel_is_slow(preloaded: str, slow: bool, maps: Path) -> None:
    line = f"7f04-7f05 r-xp 00000000 08:01 99   {preloaded}\n" if preloaded else ""
    maps.write_text(line + NAMELESS + WHEEL)
    assert has_slow_blas(maps) is slow


def test_elsewhere_nothing_is_said(maps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_slow_blas(maps), "no such file"
    maps.write_text(NAMELESS)
    assert not has_slow_blas(maps), "no BLAS"
    maps.write_text(WHEEL)
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    assert not has_slow_blas(maps), "a GPU computes"


def test_a_tuned_blas_that_is_installed_is_named(tmp_path: Path) -> None:
    assert tuned_blas(tmp_path) == ""
    library = tmp_path / "lib" / "aarch64-linux-gnu" / "openblas-pthread" / "libblas.so.3"
    library.parent.mkdir(parents=True)
    library.touch()
    assert tuned_blas(tmp_path) == str(library)
