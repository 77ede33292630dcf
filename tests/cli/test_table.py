from pathlib import Path

import pytest

from node.cli.table import render

GOLDEN = Path(__file__).parent / "golden"


def ring(node, made=0, right=0, draft=None):
    """A ring of one node, with guesses."""
    stages = [{"node": node, "start": 0, "end": 64}]
    return {"driver": node, "stages": stages, "draft": draft, "guesses": {"made": made, "right": right}}


def test_golden(status):
    assert render(status) == (GOLDEN / "status.txt").read_text().rstrip("\n")


def test_idle_cluster_without_head(status):
    status |= {"state": "idle", "head": "", "models": [], "warnings": [], "api": ""}
    for node in status["nodes"]:
        node |= {"layers": [], "link": None, "state": "idle", "loads": []}
        node["memory"] |= {"weights": 0, "kv": 0}
    lines = render(status).splitlines()
    assert lines[0] == "cluster home   IDLE   no head"
    assert lines[1] == ""
    assert lines[3] == "mini-1  idle   -       9.8 of 16.0 GB  -                             now"
    assert len(lines) == 7


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"state": "refused", "rings": []}, "m   refused"),
        ({"state": "loading", "rings": []}, "m   loading"),
        ({"state": "ready"}, "m   64 layers on 3 nodes   context 32k   2 running, 0 queued   21.4 tok/s"),
        (
            {"state": "ready", "context": 10000},
            "m   64 layers on 3 nodes   context 10000   2 running, 0 queued   21.4 tok/s",
        ),
        (
            {"state": "failed", "rings": [ring("a1")]},
            "m   failed   64 layers on 1 node   context 32k   2 running, 0 queued   21.4 tok/s",
        ),
    ],
)
def test_model_line(status, change, text):
    status["models"][0] |= {"id": "m"} | change
    assert render(status).splitlines()[1] == text


def test_how_far_a_long_prompt_is(status):
    status["models"][0]["prompts"] = {"tokens": 4595, "done": 1280, "tokens_per_second": 21.0}
    assert render(status).splitlines()[1].endswith("   prompt: 1280 of 4595 tokens, 21.0 tokens/s, 3 min left")


def test_right_guesses_of_all_rings(status):
    status["models"][0]["rings"] = [ring("a1", 90, 70), ring("b2", 10, 10)]
    assert render(status).splitlines()[1].endswith("21.4 tok/s   80 % of guesses right")
    status["models"][0]["rings"] = [ring("a1", 10, 8, "small"), ring("b2", draft="small")]
    assert render(status).splitlines()[1].endswith("80 % of guesses right (draft small)")


def test_why_two_nodes_have_a_model_that_fits_on_one(status):
    status["models"][0]["rings"][0]["gain"] = 1.42
    assert render(status).splitlines()[1].endswith("together as one stream is 1.4 times as fast")


def test_replicas_are_counted_as_rings(status):
    status["models"][0]["rings"].append(ring("d4"))
    assert "64 layers in 2 rings on 4 nodes" in render(status)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "now"), (2.9, "now"), (3, "3 s ago"), (119, "119 s ago"), (130, "2 min ago"), (10800, "3 h ago")],
)
def test_seen(status, seconds, text):
    status["nodes"][0]["last_seen_s"] = seconds
    assert render(status).splitlines()[4].endswith(text)


def test_layers_name_their_model_when_there_are_several(status):
    status["models"].append(status["models"][0] | {"id": "org/other"})
    status["nodes"][0]["layers"].append({"model": "org/other", "start": 0, "end": 4})
    assert "0-21 Qwen3-32B-4bit, 0-3 other" in render(status)


def test_layers_that_are_kept_are_one_number_however_many_ranges_they_are_in(status):
    status["nodes"][0]["idle"] = [{"model": "org/other", "start": start, "end": 9} for start in range(7)]
    status["nodes"][0]["memory"]["kept"] = 1181116006
    row = render(status).splitlines()[4]
    assert row.startswith("mini-1    ready    0-21    5.7 GB + 6.0 GB KV of 16.0 GB, +1.1 GB kept  mini-2 ")


@pytest.mark.parametrize(
    ("width", "last"), [(200, "BANDWIDTH SEEN"), (115, "RTT SEEN"), (104, "NEXT SEEN"), (80, "MEMORY SEEN"), (40, "")]
)
def test_the_status_fits_the_terminal(status, width, last):
    lines = render(status, width).splitlines()
    assert max(map(len, lines)) <= width
    columns = next(line for line in lines if line.startswith("NODE"))
    assert " ".join(columns.split()).endswith(last)
    joined = " ".join(" ".join(lines).split())
    assert all(f"! {each['code']} {' '.join(each['text'].split())}" in joined for each in status["warnings"][:1])


def test_a_narrow_terminal_has_memory_in_short_before_a_time_is_cut(status):
    for node in status["nodes"]:
        node["last_seen_s"], node["loads"] = 60, []
        node["memory"]["kept"] = 2 * 10**9
    lines = render(status, 72).splitlines()
    rows = [line for line in lines if line.startswith("mini-") and "not joined" not in line]
    assert all(line.endswith("60 s ago") for line in rows)
    assert "13.6 of 16.0 GB" in rows[0]


def test_nodes_of_one_name_show_their_ids(status):
    status["nodes"][1] |= {"name": "mini-1", "id": "b2345678"}
    status["head"] = "b2345678"
    text = render(status)
    assert "mini-1-a1 " in text
    assert "mini-1-b234 *" in text


def warning(code, node="", severity="warning", text="", hint=""):
    return {"code": code, "severity": severity, "text": text, "hint": hint, "node": node}


def test_warnings_of_one_code_are_one(status):
    low = [warning("disk-low", each, text=f"{each} has 1 GB left.", hint="Free some.") for each in ("a", "b", "c")]
    other = warning("model-refused", severity="error", text="m is refused.", hint="Fix m.")
    status["warnings"] = [other, low[0], other | {"text": "n is refused.", "hint": ""}, *low[1:]]
    assert render(status).splitlines()[-2:] == [
        "! model-refused  m is refused. Fix m. n is refused.",
        "! disk-low  3 nodes: a has 1 GB left. b has 1 GB left. c has 1 GB left. Free some.",
    ]
    status["warnings"] = [*low, *(warning("disk-low", f"d{each}", text="x", hint="Free some.") for each in range(4))]
    assert render(status).endswith("7 nodes: a has 1 GB left. b has 1 GB left. c has 1 GB left. And 4 more. Free some.")


def test_what_each_node_says_of_itself_is_told_once(status):
    names = ("mini-1", "mini-2", "mini-3", "mini-4")
    status["warnings"] = [
        warning("slow-blas", node, text=f"{name} computes slowly.", hint="Do it.")
        for node, name in zip(("a1", "b2", "c3", "d4"), names, strict=True)
    ]
    assert render(status).endswith("! slow-blas  4 nodes (mini-1, mini-2, mini-3, …): computes slowly. Do it.")
    del status["warnings"][2:]
    assert render(status).endswith("! slow-blas  2 nodes (mini-1, mini-2): computes slowly. Do it.")
    status["warnings"][1]["text"] = "mini-2 computes."
    assert render(status).endswith("! slow-blas  2 nodes: mini-1 computes slowly. mini-2 computes. Do it.")


def test_what_is_only_information_is_folded_and_last(status):
    infos = [warning(code, node, "info", text="It sleeps.") for code, node in (("may-sleep", "a"), ("may-sleep", "b"))]
    infos.append(warning("open-cluster", severity="info", text="It is open."))
    load = warning("loading", "a", "info", text="a has loaded 3 %.")
    status["warnings"] = [warning("slow-link", text="It is slow."), *infos, load]
    assert render(status).splitlines()[-3:] == [
        "! slow-link  It is slow.",
        "- loading  a has loaded 3 %.",
        "- may-sleep, open-cluster  `cluster doctor` tells more.",
    ]
    status["warnings"] = infos
    assert render(status).endswith("\n\n- may-sleep, open-cluster  `cluster doctor` tells more.")


def test_names_cannot_move_the_cursor(status):
    status["nodes"][0]["name"] = "evil\x1b[2J\n\u202e"
    text = render(status)
    assert "evil?[2J??" in text
    assert len(text.splitlines()) == len((GOLDEN / "status.txt").read_text().splitlines())


def test_a_node_refused_at_the_same_version_names_none(status):
    status["nodes"][3]["version"] = "0.1.0"
    assert "mini-4    not joined\n" in render(status)


def test_a_node_of_another_secret_says_so(status):
    status["nodes"][3]["reason"] = "secret"
    assert "mini-4    not joined: no common secret\n" in render(status)


NEEDED = {
    "id",
    "name",
    "state",
    "nodes",
    "models",
    "rings",
    "warnings",
    "code",
    "severity",
    "text",
    "cluster",
    "head",
    "term",
    "api",
}
"""Fields that every version has had."""


def lacks(value):
    """All objects within a status from which a field can be missing, each with the field."""
    if isinstance(value, dict):
        yield from ((value, field) for field in list(value) if field not in NEEDED)
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from lacks(item)


def test_a_field_that_an_older_node_lacks_is_shown_as_a_dash(status):
    missing = list(lacks(status))
    assert len(missing) > 50
    for place, field in missing:
        value = place.pop(field)
        assert render(status), field
        place[field] = value
    for field in ("memory", "link", "layers", "last_seen_s"):
        del status["nodes"][0][field]
    (line,) = (line for line in render(status).splitlines() if line.startswith("mini-1"))
    assert line.split() == ["mini-1", "ready", "-", "-", "-", "-", "-", "-"]
    del status["models"][0]["requests"]
    assert "context 32k   -   21.4 tok/s" in render(status)
