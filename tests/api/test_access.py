"""Access rules: the caller's address, the host name in the request, and the page's origin."""

import random
from unittest.mock import Mock

import pytest
from aiohttp.test_utils import make_mocked_request

from api.http.callers import Callers
from node.core.errors import NotAdmitted
from tests.api.test_gate import CHAT, KEYS

SIMPLE = {"Content-Type": "text/plain"}
"""Headers of a request that a browser sends without a preflight."""
LOCAL = (
    "http://localhost",
    "https://localhost",
    "http://localhost:3000",
    "http://127.0.0.1:8080",
    "http://[::1]:8080",
    "http://0.0.0.0:3000",
    "http://192.168.1.7:3000",
    "http://10.0.0.2",
    "http://100.101.102.103:8080",
    "http://[fd00::5]:3000",
    "http://mini-1.local:3000",
    "http://nas:8080",
    "http://tauri.localhost",
    "https://tauri.localhost",
    "http://host.docker.internal:3000",
    "app://obsidian.md",
    "capacitor://localhost",
    "ionic://localhost",
    "tauri://localhost",
    "file://",
    "vscode-webview://0a1b2c3d",
    "vscode-file://vscode-app",
    "chrome-extension://abcdefghijklmnop",
    "moz-extension://0f8fad5b-d9cb-469f-a165-70867728950e",
    "safari-web-extension://0F8FAD5B-D9CB-469F-A165-70867728950E",
)
FOREIGN = (
    "https://evil.example",
    "http://evil.example:52415",
    "null",
    "",
    "*",
    "https://localhost.evil.example",
    "http://127.0.0.1.evil.example",
    "http://192.168.1.5.nip.io",
    "http://8.8.8.8",
    "http://[2001:db8::1]:3000",
    "http://me@localhost",
    "http://localhost/",
    "http://localhost:3000 https://evil.example",
    "http://LOCALHOST",
    "HTTP://localhost",
    "https://obsidian.md",
    "app:obsidian.md",
    "data://x",
    "blob:http://localhost",
    "javascript://localhost",
    "ftp://localhost",
    "http:localhost",
    "http://",
    "http://.",
    "localhost",
)


# --- pages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", LOCAL)
async def test_local_pages_and_programs_may_use_the_api(server, origin):
    headers = {"Origin": origin, "Content-Type": "application/json"}
    for response in (
        await server.post("/v1/chat/completions", CHAT, headers=headers),
        await server.post("/v1/chat/completions", {**CHAT, "stream": True}, headers=headers),
        await server.post("/v1/chat/completions", {}, headers=headers),
        await server.post("/nowhere", {}, headers=headers),
    ):
        assert response.status != 403
        assert response.headers["Access-Control-Allow-Origin"] == origin
        assert response.headers["Vary"] == "Origin"
        assert "Access-Control-Allow-Credentials" not in response.headers
    async with server.http.get(f"{server.url}/v1/models", headers={"Origin": origin}) as response:
        assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (200, origin)


@pytest.mark.parametrize("origin", FOREIGN)
async def test_foreign_pages_can_do_nothing(server, origin):
    for path in ("/v1/chat/completions", "/responses/x/cancel", "/nowhere", "/cluster/nodes/n/drain"):
        for kind in ("text/plain", "application/json", "application/x-www-form-urlencoded", "multipart/form-data"):
            answer = await server.post(path, CHAT, headers={"Origin": origin, "Content-Type": kind})
            assert (answer.status, answer.error["type"]) == (403, "permission_error")
            assert answer.error["code"] == "origin_not_allowed"
            assert "--cors-origin" in answer.error["message"]
            assert "Access-Control-Allow-Origin" not in answer.headers
    for method in ("GET", "HEAD", "DELETE", "OPTIONS"):
        async with server.http.request(method, f"{server.url}/v1/responses/x", headers={"Origin": origin}) as response:
            assert response.status == 403
            assert "Access-Control-Allow-Origin" not in response.headers
    assert (server.backend.requests, server.backend.drained) == ([], None)


async def test_programs_that_are_no_pages_say_no_origin(server):
    assert (await server.post("/v1/chat/completions", CHAT, headers=SIMPLE)).status == 200
    assert (await server.post("/cluster/nodes/n/drain", data=b"", headers=SIMPLE)).status == 200


def asking(origin, method="POST"):
    return {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": "authorization, x-stainless-os,bad name,x-of-my-own",
    }


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models/a/b", "/health", "/nowhere"])
async def test_preflights(server, path):
    async with server.http.options(f"{server.url}{path}", headers=asking("app://obsidian.md")) as response:
        assert response.status == 204
        assert response.headers["Access-Control-Allow-Origin"] == "app://obsidian.md"
        assert "POST" in response.headers["Access-Control-Allow-Methods"]
        allowed = response.headers["Access-Control-Allow-Headers"].lower().split(", ")
        assert {"authorization", "content-type", "x-stainless-os", "x-of-my-own", "openai-organization"} <= {*allowed}
        assert not [name for name in allowed if " " in name]
        assert len(allowed) == len(set(allowed))
        assert "Access-Control-Allow-Credentials" not in response.headers


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
async def test_preflights_of_foreign_pages(server, origin, caplog):
    for _ in range(3):
        async with server.http.options(f"{server.url}/v1/chat/completions", headers=asking(origin)) as response:
            assert response.status == 403
            assert (await response.json())["error"]["code"] == "origin_not_allowed"
            assert "Access-Control-Allow-Origin" not in response.headers
            assert "Access-Control-Allow-Headers" not in response.headers
    (record,) = [record for record in caplog.records if "--cors-origin" in record.message]
    assert origin in record.message


@pytest.mark.parametrize("way", ["drain", "undrain"])
@pytest.mark.parametrize("settings", [{}, {"cors_origins": ["*"]}, {"cors_origins": ["*", "https://good.example"]}])
async def test_no_page_changes_the_cluster_unless_it_is_named(serve, backend, way, settings):
    server = await serve(**settings)
    path = f"/cluster/nodes/n/{way}"
    for origin in ("app://obsidian.md", "http://localhost:3000", "https://evil.example", "null"):
        answer = await server.post(path, data=b"", headers={"Origin": origin, **SIMPLE})
        assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")
        async with server.http.options(f"{server.url}{path}", headers=asking(origin)) as response:
            assert response.status == 403
    assert backend.drained is None
    async with server.http.get(f"{server.url}/cluster/status", headers={"Origin": "http://nas:3000"}) as response:
        assert response.status == 200


@pytest.mark.parametrize("settings", [{}, {"cors_origins": ["*"]}])
async def test_no_page_reads_the_log_unless_it_is_named(serve, settings):
    server = await serve(**settings)
    for origin, status in (("http://nas:3000", 403), ("https://evil.example", 403), (None, 200)):
        headers = {"Origin": origin} if origin else {}
        async with server.http.get(f"{server.url}/cluster/logs", headers=headers) as response:
            assert response.status == status
    named = await serve(cors_origins=["https://mine.example"])
    async with named.http.get(f"{named.url}/cluster/logs", headers={"Origin": "https://mine.example"}) as response:
        assert response.status == 200


SITES = {
    "an image": ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 403),
    "a frame": ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403),
    "a fetch": ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "empty"}, 403),
    "another port": ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "empty"}, 403),
    "a followed link": (
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
        200,
    ),
    "a typed address": ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200),
    "its own page": ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}, 200),
    "no browser": ({}, 200),
}


@pytest.mark.parametrize("settings", [{}, {"cors_origins": ["*"]}])
@pytest.mark.parametrize("case", SITES)
async def test_pages_of_other_sites_ask_the_cluster_nothing_without_their_origin(serve, settings, case):
    """Such as hundreds of logs, which they can't read but would have followed."""
    server = await serve(**settings)
    headers, status = SITES[case]
    paths = {"/cluster/status", "/cluster/models", "/cluster/logs", "/cluster/logs?follow=true", "/metrics"}
    for path in (*paths, "/", "/v1/models", "/health"):
        for method in ("GET", "HEAD"):
            async with server.http.request(method, server.url + path, headers=headers) as response:
                assert response.status == (status if path in paths else 200), path
    allowed = {**headers, "Origin": "http://nas:3000"}
    async with server.http.get(f"{server.url}/cluster/status", headers=allowed) as response:
        assert response.status == 200


async def test_a_name_that_was_made_to_lead_here_reads_no_log_and_changes_nothing_whatever_the_star_says(
    serve, backend
):
    """Its page reads as of its own origin, and so says none."""
    server = await serve(cors_origins=["*"], names=["llm.example"])
    evil, own = {"Host": "evil.example"}, {"Host": "llm.example:52415"}
    for path in ("/cluster/logs", "/cluster/logs?node=mini-2"):
        for headers, status in ((evil, 403), (own, 200), ({}, 200)):
            async with server.http.get(server.url + path, headers=headers) as response:
                assert response.status == status
    for method, path in (("POST", "/cluster/nodes/n/drain"), ("DELETE", "/cluster/models/m"), ("POST", "/api/pull")):
        async with server.http.request(method, server.url + path, headers=evil) as response:
            assert response.status == 403
            assert "--allow-host" in await response.text()
    unload = {"model": "m", "keep_alive": 0}
    assert (await server.post("/api/generate", unload, headers=evil)).status == 403
    assert backend.drained is None
    async with server.http.get(f"{server.url}/v1/models", headers=evil) as response:
        assert response.status == 200


async def test_its_own_page_may_change_the_cluster_and_no_other_page_may(serve, backend):
    """Also not one of another port of the same machine, nor under a stranger's name that leads here."""
    for settings in ({}, {"cors_origins": ["*"]}):
        server = await serve(**settings)
        path = f"{server.url}/cluster/nodes/n/drain"
        own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
        async with server.http.post(path, headers=own) as response:
            assert response.status == 200
        for origin, host in (
            (f"http://127.0.0.1:{server.port + 1}", None),
            (f"http://localhost:{server.port}", None),
            ("http://evil.example", None),
            ("http://evil.example", "evil.example"),
            ("http://evil.local:52415", "evil.local:52415"),
            ("http://evil", "evil"),
            ("null", None),
            ("http://", None),
        ):
            headers = {"Origin": origin, **({"Host": host} if host else {})}
            backend.drained = None
            async with server.http.post(path, headers=headers) as response:
                assert response.status == 403, origin
            assert backend.drained is None


async def test_named_pages_may_do_everything_besides_local_ones(serve):
    server = await serve(cors_origins=["https://good.example", "null"])
    for origin in ("https://good.example", "null"):
        headers = {"Origin": origin, **SIMPLE}
        answer = await server.post("/v1/chat/completions", CHAT, headers=headers)
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, origin)
        assert (await server.post("/cluster/nodes/n/drain", data=b"", headers=headers)).status == 200
    assert (await server.post("/v1/chat/completions", CHAT, headers={"Origin": LOCAL[0], **SIMPLE})).status == 200
    for origin in ("https://evil.example", "https://good.example.evil.example", "HTTPS://GOOD.EXAMPLE"):
        assert (await server.post("/v1/chat/completions", CHAT, headers={"Origin": origin, **SIMPLE})).status == 403


@pytest.mark.parametrize("host", ["203.0.113.9:52415", "[2001:db8::1]:52415", "llm.example"])
async def test_the_page_of_this_node_may_use_it_at_any_of_its_addresses(serve, host):
    server = await serve(open_api=True, names=["llm.example"])
    own = {"Host": host, **SIMPLE}
    assert (await server.post("/v1/chat/completions", CHAT, headers={"Origin": f"http://{host}", **own})).status == 200
    other = {"Origin": "http://203.0.113.9", **own}
    assert (await server.post("/v1/chat/completions", CHAT, headers=other)).status == 403
    for origin, status in ((f"http://{host}", 200), (LOCAL[0], 403)):
        drain = await server.post("/cluster/nodes/n/drain", data=b"", headers={"Origin": origin, **own})
        assert drain.status == status


@pytest.mark.parametrize("origin", [*LOCAL[:2], *FOREIGN[:3]])
async def test_any_origin_with_a_star(serve, origin):
    server = await serve(cors_origins=["*"])
    answer = await server.post("/v1/chat/completions", CHAT, headers={"Origin": origin, "Host": "llm.example"})
    assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, "*")


@pytest.mark.parametrize("settings", [{}, {"cors_origins": ["https://good.example"]}])
async def test_with_keys_any_page_that_has_one(serve, backend, settings):
    server = await serve(api_keys=KEYS, **settings)
    for origin in ("https://chat.example", "null", "http://localhost"):
        headers = {"Origin": origin, "Host": "llm.example", **SIMPLE}
        answer = await server.post("/v1/chat/completions", CHAT, headers=headers)
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (401, "*")
        keyed = {**headers, "Authorization": f"Bearer {KEYS[0]}"}
        assert (await server.post("/v1/chat/completions", CHAT, headers=keyed)).status == 200
        assert (await server.post("/cluster/nodes/n/drain", data=b"", headers=headers)).status == 401
        assert backend.drained is None
        async with server.http.options(f"{server.url}/v1/models", headers=asking(origin)) as response:
            assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (204, "*")
    assert (await server.post("/cluster/nodes/n/drain", data=b"", headers=keyed)).status == 200


async def test_origins_that_nobody_thought_of(server):
    """No web page is allowed unless its host is an address or a name of this network."""
    seeded = random.Random(7)
    pieces = [
        "http",
        "https",
        "://",
        ":",
        "/",
        "localhost",
        ".",
        "evil.example",
        "@",
        "[",
        "]",
        "::1",
        "127.0.0.1",
        "app",
    ]
    for _ in range(300):
        origin = "".join(seeded.choices(pieces, k=seeded.randrange(1, 7)))
        answer = await server.post("/v1/chat/completions", {}, headers={"Origin": origin, **SIMPLE})
        if answer.status != 403:
            scheme, _, host = origin.partition("://")
            assert scheme == "app" or (scheme in ("http", "https") and "evil" not in host and "@" not in host), origin


# --- names ------------------------------------------------------------------------------------------------------------


async def asked_by(server, host, *, method="GET", version="1.1"):
    lines = [f"{method} /v1/models HTTP/{version}", "Connection: close", *([] if host is None else [f"Host: {host}"])]
    answer = await server.raw("\r\n".join([*lines, "", ""]).encode())
    return int(answer.split()[1]), answer


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:52415", "LOCALHOST", "127.0.0.1:1", "[::1]:52415", "192.168.1.5", "203.0.113.9:80"),
        *("[fe80::1%25en0]:52415", "mini-1.local:52415", "home.local.", "mini-1", "host.docker.internal:52415"),
        *("pippin.localhost", "llm.example", "LLM.example:443", ""),
    ],
)
async def test_names_of_this_node(serve, host):
    server = await serve(names=["llm.example"])
    assert (await asked_by(server, host))[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:52415",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "llm.example.evil.com",
        ),
        *("me@localhost", "localhost, evil.example", "[mini.local]", "::1", "a:b", "127.0.0.1.nip.io"),
    ],
)
async def test_names_that_lead_here_though_they_are_not_this_node_s(serve, host):
    """As with DNS rebinding: the page's own origin leads to the node, so the browser lets the page read answers."""
    server = await serve(names=["llm.example"])
    for method in ("GET", "POST", "DELETE", "OPTIONS", "HEAD"):
        status, answer = await asked_by(server, host, method=method)
        assert status == 403
        assert method == "HEAD" or (b"host_not_allowed" in answer and b"--allow-host" in answer)
    assert server.backend.requests == []


async def test_who_is_no_browser_may_say_no_name(server):
    assert (await asked_by(server, None, version="1.0"))[0] == 200
    assert (await asked_by(server, None, version="1.1"))[0] == 400, "as RFC 9112 has it"


async def test_pages_of_a_name_that_is_allowed_are_the_node_s_own(serve):
    server = await serve(names=["LLM.example"])
    headers = {"Origin": "https://llm.example", "Host": "llm.example", **SIMPLE}
    assert (await server.post("/v1/chat/completions", CHAT, headers=headers)).status == 200


# --- addresses --------------------------------------------------------------------------------------------------------


def request_from(caller, own="192.168.1.2", **headers):
    ends = {"peername": (caller, 40000), "sockname": (own, 52415)}
    transport = Mock(get_extra_info=lambda name, default=None: ends.get(name, default))
    return make_mocked_request("GET", "/health", headers=headers, transport=transport)


@pytest.mark.parametrize(
    ("caller", "own", "admitted"),
    [
        ("192.168.1.9", "192.168.1.2", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("::ffff:192.168.1.9", "::ffff:192.168.1.2", True),
        ("fe80::5%en0", "fe80::1%en0", True),
        ("100.100.1.1", "100.100.1.2", True),
        ("2001:db8:0:1::5", "2001:db8:0:1::9", True),
        ("203.0.113.2", "203.0.113.2", True),
        ("203.0.113.9", "203.0.113.2", False),
        ("203.0.113.9", "192.168.1.2", False),
        ("::ffff:203.0.113.9", "::ffff:192.168.1.2", False),
        ("2001:db8:0:1::5", "2001:db8:0:2::9", False),
        ("2001:db8::5", "fd00::1", False),
    ],
)
def test_callers(caller, own, admitted):
    callers = Callers(anywhere=False, names=())
    if admitted:
        callers.check(request_from(caller, own))
    else:
        with pytest.raises(NotAdmitted, match="--open-api"):
            callers.check(request_from(caller, own, **{"X-Forwarded-For": "192.168.1.9", "Forwarded": "for=127.0.0.1"}))
    Callers(anywhere=True, names=()).check(request_from(caller, own))


async def test_strangers_get_nothing_but_a_reason(serve, monkeypatch):
    monkeypatch.setattr("api.http.callers.connection_ends", lambda _: ("203.0.113.9", "192.168.1.2"))
    server, opened, keyed = await serve(), await serve(open_api=True), await serve(api_keys=KEYS)
    for path in ("/v1/chat/completions", "/cluster/nodes/n/drain", "/nowhere"):
        answer = await server.post(path, CHAT, headers={"X-Forwarded-For": "127.0.0.1"})
        assert (answer.status, answer.error["code"]) == (403, "not_admitted")
    for method in ("GET", "OPTIONS", "DELETE"):
        async with server.http.request(method, f"{server.url}/health") as response:
            assert response.status == 403
    assert (server.backend.requests, server.backend.drained) == ([], None)
    assert (await opened.post("/v1/chat/completions", CHAT)).status == 200
    assert (await keyed.post("/v1/chat/completions", CHAT)).status == 401


# --- whom a request counts for ----------------------------------------------------------------------------------------


def names_of(callers, *froms):
    return [callers.client(request_from(*one), None) for one in froms]


def test_clients_are_told_by_their_addresses():
    callers = Callers(anywhere=True, names=None)
    one, same, other = names_of(callers, ("192.168.1.9",), ("192.168.1.9",), ("192.168.1.10",))
    assert one == same != other
    link_local, neighbour = names_of(callers, ("fe80::5%en0",), ("fe80::6%en0",))
    assert link_local != neighbour
    at_home, also = names_of(callers, ("2001:db8::5", "2001:db8::1"), ("2001:db8::6", "2001:db8::1"))
    assert at_home != also
    far, elsewhere, further = names_of(callers, ("2001:db8::5",), ("2001:db8::6:7",), ("2001:db8:0:1::5",))
    assert far == elsewhere != further
    mapped, another = names_of(callers, ("::ffff:203.0.113.8", "::"), ("::ffff:203.0.113.9", "::"))
    assert [mapped] == names_of(callers, ("203.0.113.8",)) != [another], "IPv4 on a socket for both kinds"
    assert names_of(callers, ("",)) == names_of(callers, ("",))


def test_clients_are_told_by_their_keys_where_there_are_keys():
    callers, others = Callers(anywhere=True, names=None), Callers(anywhere=True, names=None)
    request = request_from("192.168.1.9")
    names = [callers.client(request, key) for key in (*KEYS, KEYS[0])]
    assert names[0] == names[2] != names[1]
    assert names[0] != callers.client(request, None)
    assert names[0] != others.client(request, KEYS[0]), "salted: whoever is told it can't find the key by trying"
    assert all(len(name) == 16 and KEYS[0] not in name for name in names)


async def test_each_request_to_a_ring_names_its_client(serve, backend):
    server = await serve(api_keys=KEYS)
    for key in KEYS:
        headers = {"Authorization": f"Bearer {key}"}
        await server.post("/v1/chat/completions", {**CHAT, "n": 2}, headers=headers)
        await server.post("/v1/responses", {"model": CHAT["model"], "input": "Hello"}, headers=headers)
        body = {"model": CHAT["model"], "prompt": "Hello", "logprobs": 1, "echo": True}
        await server.post("/v1/completions", body, headers=headers)
        await server.post("/v1/embeddings", {"model": CHAT["model"], "input": "Hello"}, headers=headers)
    asked, evaluated = [one.client for one in backend.requests], [one.client for one in backend.evaluated]
    assert (len(asked), len(evaluated)) == (8, 4)
    assert len({*asked[:4], *evaluated[:2]}) == len({*asked[4:], *evaluated[2:]}) == 1
    assert asked[0] != asked[4]
