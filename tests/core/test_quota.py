"""Tests of what is done for others at once."""

import pytest

from node.core.errors import Overloaded
from node.core.quota import Quota


def test_limits_each_caller_and_all_together() -> None:
    quota = Quota("KV is being sent", 3, 2)
    with quota.use("a"), quota.use("a"):
        with pytest.raises(Overloaded, match="KV is being sent 2 times already, 2 times for a"):
            quota.use("a").__enter__()
        with quota.use("b"), pytest.raises(Overloaded, match="3 times already, 0 times for c"):
            quota.use("c").__enter__()
        with quota.use("c"):
            pass


def test_is_free_again_after_a_failure() -> None:
    quota = Quota("KV is being sent", 1, 1)
    with pytest.raises(OSError, match="disk"), quota.use("a"):
        raise OSError("disk")
    assert not quota.used
    with quota.use("a"):
        pass
