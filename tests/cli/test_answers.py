import io
import json

import pytest

from node.cli.__main__ import main
from node.cli.chat import Chat
from node.cli.client import parse_api
from node.core.generation import RANGES


def sse(*events, done=True):
    lines = [event if isinstance(event, str) else f"data: {json.dumps(event)}" for event in events]
    return 200, "".join(f"{line}\n\n" for line in [*lines, *(["data: [DONE]"] if done else [])]).encode()


def chunk(text=None, *, reasoning=None, finish=None):
    delta = {"content": text} if text is not None else {"reasoning_content": reasoning} if reasoning else {}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


HELLO = sse(chunk(""), chunk("Hello "), ": keep-alive", chunk("🙂\x1b[2J!"), chunk(finish="stop"))


@pytest.fixture(autouse=True)
def no_pipe(monkeypatch):
    """Standard input is a pipe that has ended."""
    monkeypatch.setattr("sys.stdin", io.StringIO())


# --- cluster run ----------------------------------------------------------------------------------------------------


def test_run_prints_the_answer_without_control_characters(node, capsys):
    node.answers = [HELLO]
    assert main(["run", "demo", "Hi", "there", "--system", "Be kind.", "--temperature", "0", "--api", node.url]) == 0
    assert capsys.readouterr() == ("Hello 🙂[2J!\n", "")
    assert node.paths == ["/v1/chat/completions"]
    sent = node.bodies[0]
    assert sent["messages"] == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi there"}]
    assert (sent["model"], sent["temperature"], sent["max_tokens"], sent["stream"]) == ("demo", 0, None, True)


USAGE = {"prompt_tokens": 37, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 30}}
COUNTED = sse(chunk("Paris."), chunk(finish="stop"), {"choices": [], "usage": USAGE})


def test_run_leaves_sampling_to_the_model_and_tells_what_counts_if_that_is_silent(node, capsys):
    node.answers = [HELLO, (200, b"{}")]
    assert main(["run", "demo", "Hi", "--api", node.url]) == 0
    assert main(["run", "demo", "Hi", "--json", "--api", node.url]) == 0
    for sent in node.bodies:
        assert sent["temperature"] is None
        assert sent["sampling_defaults"] == {"temperature": 0.7, "top_p": 0.95}


def test_run_tells_how_quick_an_answer_was(node, capsys):
    node.answers = [COUNTED]
    assert main(["run", "demo", "Hi", "--verbose", "--api", node.url]) == 0
    out, err = capsys.readouterr()
    assert out == "Paris.\n"
    assert err.startswith("prompt: 37 tokens, 30 of them known; answer: 7 tokens; first text after ")


def test_options_may_stand_between_model_and_prompt(node, capsys):
    node.answers = [HELLO]
    assert main(["run", "demo", "--api", node.url, "Hi", "there"]) == 0
    assert node.bodies[0]["messages"][-1]["content"] == "Hi there"
    with pytest.raises(SystemExit, match="2"):
        main(["run", "demo", "--api", node.url, "Hi", "--bogus"])
    assert capsys.readouterr().err == "cluster run: unknown argument: --bogus. See cluster run --help\n"


def test_run_takes_what_comes_by_a_pipe_before_the_prompt(node, monkeypatch):
    node.answers = [HELLO]
    monkeypatch.setattr("sys.stdin", io.StringIO("a long letter\n"))
    assert main(["run", "demo", "Make it shorter", "--api", node.url]) == 0
    assert node.bodies[0]["messages"][-1]["content"] == "a long letter\n\nMake it shorter"


def test_run_without_a_prompt(node, capsys):
    assert main(["run", "demo", "--api", node.url]) == 1
    assert "There is no prompt. Write it like: cluster run MODEL" in capsys.readouterr().err


def test_run_takes_no_pipe_of_other_bytes(node, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xd8\xff\xe0")))
    assert main(["run", "demo", "What is this?", "--api", node.url]) == 1
    assert capsys.readouterr().err == "cluster: What comes by the pipe is no text in UTF-8.\n"
    assert node.paths == []


def test_run_as_json_is_the_nodes_own(node, capsys):
    node.answers = [{"object": "chat.completion", "choices": []}]
    assert main(["run", "demo", "Hi", "--json", "--api", node.url]) == 0
    assert json.loads(capsys.readouterr().out) == node.answers[0]
    assert "stream" not in node.bodies[0]


def test_reasoning_is_not_part_of_the_output(node, capsys):
    node.answers = [sse(chunk(reasoning="Hm."), chunk("42"), chunk(finish="length"))]
    assert main(["run", "demo", "Hi", "--api", node.url]) == 0
    out, err = capsys.readouterr()
    assert out == "42\n"
    assert "maximum length" in err


def test_what_a_stream_waits_for_is_told(node, capsys):
    node.answers = [sse(": demo is loading: 40 %", chunk("42"), chunk(finish="stop"))]
    assert main(["run", "demo", "Hi", "--api", node.url]) == 0
    assert capsys.readouterr() == ("42\n", "demo is loading: 40 %\n")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((404, b'{"error": {"message": "There is no model demo."}}'), "There is no model demo."),
        (sse(chunk("4"), {"error": {"message": "The ring was lost."}}, done=False), "The ring was lost."),
        (sse(chunk("4"), done=False), "broke off its answer."),
        (sse("data: {"), "The stream of the answer is damaged"),
        ((401, b"{}"), "asks for an API key"),
        ((502, b"<html>"), "is no Pippin node: it answered 502"),
    ],
)
def test_a_failure_is_told(answer, text, node, capsys):
    node.answers = [answer]
    assert main(["run", "demo", "Hi", "--api", node.url]) == 1
    assert text in capsys.readouterr().err


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGF0"}}


def asked(text, *pictures):
    return [*pictures, {"type": "text", "text": text}]


def test_run_sends_pictures(node, tmp_path, capsys):
    node.answers = [HELLO]
    file = tmp_path / "hat.png"
    file.write_bytes(b"hat")
    options = ["--image", str(file), "--image", str(file), "--api", node.url]
    assert main(["run", "demo", "What is it?", *options]) == 0
    assert node.bodies[0]["messages"] == [{"role": "user", "content": asked("What is it?", PICTURE, PICTURE)}]
    assert main(["run", "demo", "Hi", "--image", str(tmp_path / "none.png"), "--api", node.url]) == 1
    assert "none.png can't be read: No such file or directory." in capsys.readouterr().err
    assert main(["run", "demo", "Hi", "--image", "/dev/zero", "--api", node.url]) == 1
    assert "/dev/zero is no picture that a node takes: it has more than 20,971,520 bytes." in capsys.readouterr().err


def test_chat_shows_a_picture_with_the_next_text(node, tmp_path, capsys):
    node.answers = [HELLO]
    file = tmp_path / "hat.png"
    file.write_bytes(b"hat")
    first, second, third = chat(
        node, f"/image {file}", "/image", "What is it?", "Sure?", f"/image {file}", "/reset", "Hi"
    )
    answer = "Hello 🙂\x1b[2J!"
    assert first == [asked("What is it?", PICTURE)]
    assert second == [asked("What is it?", PICTURE), answer, "Sure?"]
    assert third == ["Hi"]
    assert "Name the file: /image FILE" in capsys.readouterr().err


# --- cluster chat ---------------------------------------------------------------------------------------------------


class Typed:
    """Lines that a person types; an exception is raised instead, as Ctrl-C is."""

    def __init__(self, *lines):
        self.left = list(lines)

    def __call__(self, prompt):
        if not self.left:
            raise EOFError
        line = self.left.pop(0)
        if isinstance(line, type):
            raise line
        return line


def chat(node, *lines, model="demo", system=""):
    Chat(parse_api(node.url), model, system, read=Typed(*lines)).run()
    return [[message["content"] for message in body["messages"]] for body in node.bodies]


def test_chat_has_a_history_until_it_is_reset(node):
    node.answers = [HELLO]
    asked = chat(node, "/system Be kind.", "one", "", '"""two', 'lines"""', "/reset", "three", "/quit", "four")
    answer = "Hello 🙂\x1b[2J!"
    assert asked == [
        ["Be kind.", "one"],
        ["Be kind.", "one", answer, "two\nlines"],
        ["Be kind.", "three"],
    ]


def test_chat_goes_on_after_a_failure_and_ctrl_c(node, capsys):
    node.answers = [(503, b'{"error": {"message": "No room."}}'), HELLO]
    assert chat(node, "one", KeyboardInterrupt, "two") == [["one"], ["two"]]
    out, err = capsys.readouterr()
    assert err == "cluster: No room.\n"
    assert "Ctrl-D or /quit ends" in out


def test_ctrl_c_stops_the_answer_only(node, monkeypatch):
    node.answers = [HELLO]
    monkeypatch.setattr("node.cli.client._event", Interrupted())
    assert chat(node, "one", "two")[1] == ["one", "Hello ", "two"]


class Interrupted:
    """Raises Ctrl-C once, at the third event."""

    def __init__(self):
        self.count = 0

    def __call__(self, data):
        self.count += 1
        if self.count == 3:
            raise KeyboardInterrupt
        return json.loads(data)


def test_chat_changes_models_and_lists_them(node, capsys):
    node.answers = [{"data": [{"id": "demo"}, {"id": "org/other"}]}, HELLO]
    chat(node, "/model", "/model org/other", "Hi")
    assert node.bodies[-1]["model"] == "org/other"
    assert capsys.readouterr().out.startswith("* demo\n  org/other\n")


def test_chat_saves_what_the_api_takes_and_overwrites_nothing(node, tmp_path, capsys):
    node.answers = [HELLO]
    mine, file = tmp_path / "mine", tmp_path / "chat.json"
    mine.write_text("precious")
    chat(node, "one", "/save", "/save ~nobody-here/x", f"/save {mine}", f"/save {file}", "/reset", f"/save {file}")
    assert mine.read_text() == "precious"
    assert json.loads(file.read_text()) == {"model": "demo", "messages": []}
    assert capsys.readouterr().err.splitlines() == [
        "cluster: Name the file: /save FILE",
        "cluster: ~nobody-here/x can't be written: there is no such user.",
        f"cluster: {mine} can't be written: File exists.",
    ]


def test_chat_samples_as_it_is_set(node, capsys):
    node.answers = [HELLO]
    chat(node, "/set temperature 0.2", "/set top_k 20", "one", "/set", "/set top_k", "/set top_p 7", "/set x 1", "two")
    assert [(body.get("temperature"), body.get("top_k")) for body in node.bodies] == [(0.2, 20), (0.2, None)]
    assert all(body["sampling_defaults"] == {"temperature": 0.7, "top_p": 0.95} for body in node.bodies)
    out, err = capsys.readouterr()
    assert "temperature 0.2\ntop_k 20\n" in out
    assert err.splitlines() == [
        "cluster: Can't be set: top_p must be a number from 0 to 1, not '7'.",
        "cluster: Can't be set: there is no 'x', only " + ", ".join(RANGES) + ".",
    ]


def test_chat_shows_how_quick_the_last_answer_was(node, capsys):
    node.answers = [COUNTED]
    chat(node, "/stats", "one", "/stats")
    out = capsys.readouterr().out
    assert out.startswith("There is no answer yet.\nParis.\nprompt: 37 tokens")


@pytest.mark.parametrize("end", ["/quit", "/bye", "/exit"])
def test_chat_ends(node, end):
    node.answers = [HELLO]
    assert chat(node, "/load org/other", "one", end, "two") == [["one"]]
    assert node.bodies[0]["model"] == "org/other"


def test_an_unknown_command_is_not_sent(node, capsys):
    assert chat(node, "/resett", "/help") == []
    out = capsys.readouterr().out
    assert out.startswith("There is no command /resett.\n/model [ID]")
    node.answers = [HELLO]
    assert chat(node, "/etc/hosts says what?") == [["/etc/hosts says what?"]]


@pytest.mark.parametrize(
    ("states", "held", "model"),
    [({"a": "loading", "b": "ready"}, [], "b"), ({"a": "loading"}, [], "a"), ({}, ["c"], "c")],
)
def test_chat_without_a_model_takes_one_that_is_there(states, held, model, node, ready, monkeypatch):
    models = [{"id": name, "state": state, "context": 8192} for name, state in states.items()]
    node.answers = [ready | {"models": models}, *([{"data": [{"id": name} for name in held]}] if held else []), HELLO]
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi\n"))
    assert main(["chat", "--api", node.url]) == 0
    assert node.bodies[-1]["model"] == model


def test_chat_without_a_model_names_those_that_there_are(node, ready, capsys):
    node.answers = [ready | {"models": []}, {"data": [{"id": "a"}, {"id": "b"}]}]
    assert main(["chat", "--api", node.url]) == 1
    assert capsys.readouterr().err == "cluster: No model is loaded. Name one. There are a, b.\n"


def test_a_chat_with_a_name_of_no_model_ends_before_a_text_is_typed(node, capsys, monkeypatch):
    no = (404, json.dumps({"error": {"code": "model_not_found", "message": "No."}}).encode())
    node.by_path = {"/cluster/models": {"models": [{"id": "pippin-demo", "short_names": []}], "short_names": {}}}
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi\n"))
    node.answers = [no]
    assert main(["chat", "pippin-dmo", "--api", node.url]) == 1
    assert capsys.readouterr() == ("", "cluster: There is no model 'pippin-dmo' here. Did you mean pippin-demo?\n")
    node.answers = [no, HELLO]
    assert main(["chat", "org/on-the-hub", "--api", node.url]) == 0
    assert node.bodies[-1]["model"] == "org/on-the-hub"
