"""Who has which file, and who gets it from the hub."""

from node.core.model_files import Claim, File, Listing
from node.core.models import HeldModel
from node.core.nodes import Address
from node.model.offers import Claims, claimed, holders_of, prior

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


def test_of_two_that_claim_at_once_the_lower_id_gets_the_file():
    listings = {A: Listing(claims=(Claim("x", False), Claim("y", False))), C: Listing(claims=(Claim("x", False),))}
    assert claimed(listings) == {"x", "y"}
    assert prior(listings, "b") == {"x", "y"}
    assert prior(listings, "0") == set()


def test_a_download_that_began_goes_before_every_claim():
    assert prior({C: Listing(claims=(Claim("x", True), Claim("y", False)))}, "b") == {"x"}


def test_claims_are_told_until_they_end():
    claims, model = Claims(), HeldModel("org/model", "c" * 40)
    with claims.of(model, ["x", "y"]) as one, claims.of(model, ["y", "z"]):
        one.began = True
        assert claims.told(model) == (Claim("x", True), Claim("y", True), Claim("z", False))
        assert claims.told(HeldModel("org/other")) == ()
        one.names -= {"x"}
        assert [claim.name for claim in claims.told(model)] == ["y", "z"]
    assert claims.told(model) == ()
