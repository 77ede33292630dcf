import pytest

from node.core.node_names import named, shown_names

NODES = {"e7d6aa": "mini-1", "e7d0bb": "mini-1", "f00dcc": "mini-2", "mini-2dd": "f00d"}


def test_nodes_of_one_name_are_told_apart():
    assert list(shown_names(NODES).values()) == ["mini-1-e7d6", "mini-1-e7d0", "mini-2", "f00d"]


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("e7d6aa", ["e7d6aa"]),
        ("mini-1-e7d0", ["e7d0bb"]),
        ("e7d6", ["e7d6aa"]),
        ("e7", ["e7d6aa", "e7d0bb"]),
        ("mini-1", ["e7d6aa", "e7d0bb"]),
        ("mini-2", ["f00dcc"]),
        ("f00d", ["mini-2dd"]),
        ("mini", ["mini-2dd"]),
        ("nobody", []),
        ("", []),
    ],
)
def test_what_a_text_means(text, nodes):
    assert named(text, NODES) == nodes
