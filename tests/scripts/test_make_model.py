"""The MTP layer that scripts/make_model.py makes is right for the asked share of the tokens."""

import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from node.core.frames import Open
from node.core.generation import Sampling
from node.engine.mtp_guesser import MtpGuesser
from node.engine.sampling import Draw, History
from node.engine.tensor_codec import pack
from tests.conftest import ROOT
from tests.engine.models import likeliest, load

GREEDY = Draw(Sampling(temperature=0), 0, History(), lambda _: False)


@pytest.mark.parametrize("share", [0.8, 1.0])
def test_the_layer_is_right_as_often_as_asked(tmp_path: Path, share: float) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "make_model.py"), "--preset", "tiny", "--out", str(tmp_path)]
    subprocess.run([*command, "--mtp", str(share)], check=True, capture_output=True)
    driver = load(tmp_path, 0, 4)
    guesser = MtpGuesser(load(tmp_path, 4, 5), driver)
    driver.lanes.apply(Open(0))
    tokens, guessed, right = [5], None, 0
    for end in range(1, 301):
        result = driver.run(0, mx.array([tokens[-1:]], mx.int32))
        tokens.append(int(likeliest(driver.finish(result, every=True)).item()))
        right += tokens[-1] == guessed
        guesser.observe(tokens, end, pack(result))
        guessed = guesser.guess(tokens, len(tokens), GREEDY)
    assert len(set(tokens)) == len(tokens), "a cycle of all tokens"
    assert right / 299 == pytest.approx(share, abs=0.08)
