"""After a crash the node knows which model it was loading; after any other end it suspects none."""

import faulthandler
import json
import subprocess
import sys

import pytest

from node.core.models import HeldModel
from node.host.crashes import Crashes

PROGRAM = """
import os, sys, signal, ctypes
from pathlib import Path
from node.core.models import HeldModel
from node.host.crashes import Crashes
crashes = Crashes(Path(sys.argv[1]))
with crashes.loading(HeldModel("org/good", "1")):
    pass
with crashes.loading(HeldModel("org/bad", "2")):
    {end}
"""
SEGFAULT, KILL, ERROR = "ctypes.string_at(0)", "os.kill(os.getpid(), signal.SIGKILL)", "raise ValueError"


@pytest.fixture
def ended(tmp_path):
    def end(how):
        program = [sys.executable, "-c", PROGRAM.replace("{end}", how), str(tmp_path)]
        assert subprocess.run(program, stderr=subprocess.DEVNULL, check=False).returncode

    yield end
    faulthandler.enable(sys.__stderr__)  # else a fault of another test would be written to this one's folder


def test_a_fault_in_a_load_is_told_until_a_load_succeeds(ended, tmp_path):
    ended(SEGFAULT)
    crashes = Crashes(tmp_path)
    (crash,) = crashes.crashed()
    assert (crash.model, crash.revision, crash.cause) == ("org/bad", "2", "Segmentation fault")
    assert crash.at > 0
    assert "Segmentation fault" in (tmp_path / "last-crash.txt").read_text()
    crashes = Crashes(tmp_path)
    assert crashes.crashed() == (crash,), "a start without a load tells it again"
    with pytest.raises(KeyError), crashes.loading(HeldModel("org/bad", "2")):
        raise KeyError
    assert crashes.crashed() == (crash,)
    with crashes.loading(HeldModel("org/bad", "2")):
        pass
    assert crashes.crashed() == Crashes(tmp_path).crashed() == ()


@pytest.mark.parametrize("how", [KILL, ERROR])
def test_a_kill_is_no_crash(ended, tmp_path, how):
    ended(how)
    assert Crashes(tmp_path).crashed() == ()


@pytest.mark.parametrize("content", ["", "{", "[]", json.dumps({"loading": [{}], "crashed": [1]})])
def test_a_damaged_record_says_nothing(ended, tmp_path, content):
    ended(SEGFAULT)
    (tmp_path / "loads.json").write_text(content)
    assert Crashes(tmp_path).crashed() == ()
