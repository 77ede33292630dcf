"""Who has which file, and who gets it from the hub."""

from functools import partial

from node.core.model_files import File, Listing
from node.core.models import HeldModel, ModelVersion, Shard, TensorHeader
from node.core.nodes import Address
from node.core.rings import Ring, StageSpec
from node.model.offers import holders_of, nodes_by_file, place, turn
from node.model.weights import Weights

A, B, C = (Address(f"10.0.0.{number}:1", name) for number, name in enumerate("abc"))
GOOD, OTHER = File("x", 5, "a" * 64), File("x", 5, "b" * 64)


def test_holders_of_each_file():
    listings = {A: Listing((GOOD, File("y", 1))), B: Listing((GOOD,)), C: Listing((File("x", 5),))}
    assert holders_of(listings) == {GOOD: [A, B, C], File("y", 1): [A]}, "C does not know the digest"


def test_of_different_contents_that_of_most():
    assert holders_of({A: Listing((OTHER,)), B: Listing((GOOD,)), C: Listing((GOOD,))}) == {GOOD: [B, C]}
    assert holders_of({A: Listing((OTHER,)), B: Listing((File("x", 5),)), C: Listing((File("x", 6),))}) == {
        OTHER: [A, B]
    }


def ring(*stages, shared_ends=False, draft=None, revision="r"):
    version, parts = ModelVersion("org/model", revision), tuple(StageSpec(*stage) for stage in stages)
    return Ring("ring", version, parts, 1, 1, shared_ends=shared_ends, draft=draft)


def test_the_nodes_that_need_a_file():
    tensors = {"model.embed_tokens.weight": "one", "model.layers.0.w": "one", "model.layers.1.w": "two"}
    weights = Weights({name: TensorHeader(file, "U8", (1,), 1) for name, file in tensors.items()}, {"one": 1, "two": 1})
    model, of = HeldModel("org/model", "r"), partial(nodes_by_file, model=HeldModel("org/model", "r"), weights=weights)
    split = [("a", 0, 1), ("b", 1, 2)]
    assert of([ring(*split)]) == {"one": {"a"}, "two": {"b"}}
    assert of([ring(*split), ring(("c", 0, 2))]) == {"one": {"a", "c"}, "two": {"b", "c"}}
    assert of([ring(*split, shared_ends=True)]) == {"one": {"a", "b"}, "two": {"b"}}
    assert of([ring(*split, revision="other")]) == {}
    draft = Shard(ModelVersion(model.id, model.revision), 0, 2)
    assert of([ring(*split, revision="other", draft=draft)]) == {"one": {"a"}, "two": {"a"}}


def test_nodes_fetch_a_file_in_turn():
    nodes, files = set("abcde"), [f"model-{number}.safetensors" for number in range(200)]
    for file in files:
        assert sorted(turn(node, nodes, "r", file) for node in nodes) == [0, 1, 2, 3, 4]
        assert turn("pulls", nodes, "r", file) == 5
        assert turn("a", {"a"}, "r", file) == turn("pulls", set(), "r", file) == 0
        assert place("a", nodes, "r", file) > place("pulls", nodes, "r", file)
    first = {file: min(nodes, key=lambda node: turn(node, nodes, "r", file)) for file in files}
    assert all(20 < list(first.values()).count(node) < 60 for node in nodes), "each node fetches its share"
    for file in files:
        left = nodes - {"c"}
        assert first[file] == "c" or turn(first[file], left, "r", file) == 0, "the other files stay where they were"
