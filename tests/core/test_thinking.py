"""When the thoughts of an answer are ended, from its tokens alone."""

import pytest

from node.core.generation import ThinkingBudget

BEGUN = ThinkingBudget(3, (), (99, 50), (7, 8, 99))
"""The prompt has begun the thoughts."""
LATER = ThinkingBudget(2, (1, 2), (99,), (99,))


@pytest.mark.parametrize(
    ("budget", "answer", "token", "is_over"),
    [
        (BEGUN, [], None, False),
        (BEGUN, [5, 5], None, False),
        (BEGUN, [5, 5, 5], 7, False),
        (BEGUN, [5, 5, 5, 7], 8, False),
        (BEGUN, [5, 5, 5, 7, 8], 99, False),
        (BEGUN, [5, 5, 5, 7, 8, 99], None, True),
        (BEGUN, [5, 99], None, True),
        (BEGUN, [5, 99, 5, 5, 5], None, True),
        (BEGUN, [5, 50, 6, 6, 6], None, True),  # a call ends thoughts, too
        (ThinkingBudget(0, (), (99,), (99,)), [], 99, False),
        (LATER, [], None, False),
        (LATER, [1, 1, 3, 1], None, False),
        (LATER, [4, 1, 1, 2, 5], None, False),
        (LATER, [4, 1, 1, 2, 5, 5], 99, False),
        (LATER, [4, 1, 1, 2, 5, 5, 99], None, True),
        (LATER, [4, 4, 4, 4, 4, 4, 4], None, False),
    ],
)
def test_what_is_forced(budget, answer, token, is_over):
    assert budget.forced(answer) == token
    assert budget.is_over(answer) is is_over
