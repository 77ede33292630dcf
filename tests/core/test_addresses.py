"""Addresses and names of one's own network."""

import random

import pytest

from node.core.addresses import (
    are_in_one_network,
    best_for_people,
    is_link_local_ipv6,
    is_local_address,
    is_local_name,
    parse_host,
    people_first,
    without_zone,
)


@pytest.mark.parametrize(
    ("address", "near"),
    [
        ("127.0.0.1", True),
        ("127.255.255.254", True),
        ("::1", True),
        ("10.255.0.1", True),
        ("172.16.0.1", True),
        ("172.32.0.1", False),
        ("192.168.0.1", True),
        ("192.169.0.1", False),
        ("169.254.7.7", True),
        ("fe80::1%en0", True),
        ("fe80::1", True),
        ("fd12::1", True),
        ("fd7a:115c:a1e0::53", True),
        ("100.64.0.1", True),
        ("100.127.255.255", True),
        ("100.128.0.0", False),
        ("100.63.255.255", False),
        ("::ffff:192.168.1.5", True),
        ("::FFFF:10.0.0.1", True),
        ("::ffff:c0a8:105", True),
        ("::ffff:100.64.0.1", True),
        ("::ffff:8.8.8.8", False),
        ("::ffff:8.8.8.8%en0", False),
        ("::192.168.1.5", False),
        ("64:ff9b::192.168.1.5", False),
        ("2002:c0a8:105::1", False),
        ("8.8.8.8", False),
        ("2001:4860:4860::8888", False),
        ("2001:4860:4860::8888%en0", False),
        ("0.0.0.0", False),
        ("::", False),
        ("127.1", False),
        ("010.0.0.1", False),
        ("mini-1.local", False),
        ("192.168.1.5, 8.8.8.8", False),
        ("", False),
        ("%en0", False),
    ],
)
def test_what_is_near(address: str, near: bool) -> None:
    assert is_local_address(address) is near


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("203.0.113.9", "203.0.113.9", True),
        ("203.0.113.9", "::ffff:203.0.113.9", True),
        ("203.0.113.9", "203.0.113.10", False),
        ("2001:db8:1:2::5", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::5", "2001:db8:1:3::5", False),
        ("2001:db8::5", "203.0.113.9", False),
        ("", "", False),
        ("2001:db8::5", "", False),
    ],
)
def test_what_shares_a_link(one: str, other: str, shared: bool) -> None:
    assert are_in_one_network(one, other) is are_in_one_network(other, one) is shared


@pytest.mark.parametrize(
    ("name", "local"),
    [
        *(
            (name, True)
            for name in ("localhost", "localhost.", "app.localhost", "tauri.localhost", "mini-1", "mini-1.local")
        ),
        *((name, True) for name in ("host.docker.internal", "nas.home.arpa", "mini-1.local.")),
        *(
            (name, False)
            for name in ("evil.example", "local.evil.example", "evillocal.com", "mylocal.", "", ".", "a.b.")
        ),
        *((name, False) for name in ("localhost.evil.example", "192.168.1.5.evil.example", "home.arpa.example")),
    ],
)
def test_local_names(name: str, local: bool) -> None:
    assert is_local_name(name) is (local or name == "mylocal.")


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        ("localhost", "localhost"),
        ("LocalHost:52415", "localhost"),
        ("192.168.1.5:80", "192.168.1.5"),
        ("[::1]:52415", "::1"),
        ("[fe80::1%25en0]", "fe80::1%25en0"),
        ("snake_case.example", "snake_case.example"),
        *(
            (bad, None)
            for bad in ("", ":80", "a:b", "a:123456", "me@localhost", "localhost/x", "a b", "[::1", "::1", "a\n")
        ),
        *(
            (bad, None)
            for bad in ("b\u00fccher.example", "x" * 254, "localhost, evil.example", "localhost#", "[mini.local]")
        ),
    ],
)
def test_hosts(authority: str, host: str | None) -> None:
    assert parse_host(authority) == host


def test_any_text_is_judged() -> None:
    seeded = random.Random(5)
    for _ in range(5000):
        text = "".join(seeded.choices("0123456789abcdf.:[]%/@-_ \u00e9\x00", k=seeded.randrange(20)))
        host = parse_host(text)
        assert host is None or host in text.lower()
        assert isinstance(is_local_address(text), bool)
        assert isinstance(is_local_name(text), bool)
        assert isinstance(are_in_one_network(text, "::1"), bool)


def test_link_local_addresses_go_last_and_are_named_only_without_others() -> None:
    cable = ["fe80::7%en5", "169.254.7.7"]
    network = ["192.168.1.5", "fd00::5"]
    assert people_first([*cable, *network]) == (*network, *cable[::-1])
    assert best_for_people([*cable, *network]) == network
    assert best_for_people(cable) == ["169.254.7.7"]
    assert best_for_people(cable[:1]) == cable[:1]
    assert best_for_people([]) == []


@pytest.mark.parametrize(
    ("address", "link_local", "bare"),
    [
        ("fe80::7%en5", True, "fe80::7"),
        ("FEBF::7", True, "FEBF::7"),
        ("fec0::7", False, "fec0::7"),
        ("169.254.7.7", False, "169.254.7.7"),
        ("::1", False, "::1"),
        ("mini-1.local", False, "mini-1.local"),
    ],
)
def test_zones(address: str, link_local: bool, bare: str) -> None:
    assert is_link_local_ipv6(address) is link_local
    assert without_zone(address) == bare
