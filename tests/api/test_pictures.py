"""Pictures of clients of each API: the request to the driver has them and their places, or they are refused with a reason."""

import asyncio
import base64
import io
import json
from itertools import chain

import anthropic
import pytest
from PIL import Image

from api.http.limits import MAX_PICTURE_BYTES, MAX_PICTURES
from node.core.errors import ContextExceeded
from node.core.pictures import Picture
from node.model.config import read_config, read_picture_form
from node.text.pictures import Pictures
from node.text.tokenizer import Tokenizer
from tests.api.conftest import MODEL, ScriptedBackend, ScriptedModel
from tests.text.test_pictures import drawn, filed

PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat", "/api/generate")
RED, BLUE = (filed(Image.new("RGB", size, color)) for size, color in (((64, 32), "red"), ((24, 40), "blue")))
TEXT = {"type": "text", "text": "What is it?"}


@pytest.fixture(scope="module")
def pictured(picture_model):
    """The tokenizer and the form of a model that takes pictures."""
    return Tokenizer(picture_model), read_picture_form(picture_model, read_config(picture_model))


@pytest.fixture
async def backend(pictured, grammars, sandbox_server):
    tokenizer, form = pictured
    model = ScriptedModel(MODEL, 2048, tokenizer, pictures=form)
    backend = ScriptedBackend(model, grammars, pictures=Pictures(sandbox_server))
    backend.say("A hat.")
    yield backend
    await backend.pictures.end()


def url(data, kind="png"):
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def part(data):
    return {"type": "image_url", "image_url": {"url": url(data)}}


def block(data):
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


def whole(path, data, text="What is it?"):
    """A request of each API with a picture before a text."""
    code = base64.b64encode(data).decode()
    match path:
        case "/v1/chat/completions":
            asked = {"messages": [{"role": "user", "content": [part(data), {"type": "text", "text": text}]}]}
        case "/v1/responses":
            content = [{"type": "input_image", "image_url": url(data)}, {"type": "input_text", "text": text}]
            asked = {"input": [{"role": "user", "content": content}]}
        case "/v1/messages":
            content = [block(data), {"type": "text", "text": text}]
            asked = {"max_tokens": 9, "messages": [{"role": "user", "content": content}]}
        case "/api/chat":
            asked = {"messages": [{"role": "user", "content": text, "images": [code]}], "stream": False}
        case _:
            asked = {"prompt": text, "images": [code], "stream": False}
    return {"model": MODEL, **asked}


async def test_choices_with_large_pictures_take_turns(server, backend, monkeypatch):
    """Each takes the pictures to the driver."""
    monkeypatch.setattr("api.chat.generation.MAX_PIXEL_BYTES", 2 * len(picture_of(RED).pixels))
    backend.pause_at, running = 1, []
    script = backend.script

    def counted(request):
        running.append(backend.running)
        return script(request)

    backend.script = counted
    asked = asyncio.create_task(server.post(PATHS[0], whole(PATHS[0], RED) | {"n": 5}))
    while len(running) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    backend.go_on.set()
    answer = await asked
    assert len(answer.json["choices"]) == 5
    assert max(running) == 2


def picture_of(data):
    """As the tiny model takes it, whose cells have 8 pixels."""
    shown = Image.open(io.BytesIO(data)).convert("RGB")
    return Picture(*shown.size, shown.tobytes())


def places(tokenizer, data):
    picture = picture_of(data)
    rows, columns = picture.height // 8, picture.width // 8
    numbers = picture.numbers(rows * columns, 2056)
    marks = tokenizer.pictures
    laid = [(*numbers[row * columns : (row + 1) * columns], marks.row_end) for row in range(rows)]
    return [*[*chain(*laid)][:-1], marks.end]


def rendered(tokenizer, *parts):
    """The tokens of a chat: texts, in which control strings are tokens, and pictures."""
    tokens = []
    for each in parts:
        tokens += places(tokenizer, each) if isinstance(each, bytes) else tokenizer.encode(each, bos=False)
    return tokens


# --- what comes to the driver ---


@pytest.mark.parametrize("path", PATHS)
async def test_a_picture_is_in_the_prompt_and_in_the_request(server, path):
    answer = await server.post(path, whole(path, RED))
    assert answer.status == 200, answer.body
    (request,) = server.backend.requests
    tokenizer = server.backend.model.tokenizer
    expected = rendered(tokenizer, "<|bos|><|user|>", RED, "What is it?<|end|><|assistant|>")
    assert list(request.prompt) == expected
    assert request.pictures == (picture_of(RED),)
    usage = answer.json.get("usage", {})
    counted = [usage.get("prompt_tokens"), usage.get("input_tokens"), answer.json.get("prompt_eval_count")]
    assert len(expected) in counted
    assert "context" not in answer.json


async def test_pictures_and_texts_keep_their_order_over_all_turns(server):
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [TEXT, part(RED), {"type": "text", "text": "Or"}, part(BLUE)]},
        {"role": "assistant", "content": "A hat."},
        {"role": "user", "content": [part(RED), {"type": "text", "text": "And now?"}]},
    ]
    answer = await server.post("/v1/chat/completions", {"model": MODEL, "messages": messages, "n": 2})
    assert answer.status == 200
    tokenizer = server.backend.model.tokenizer
    parts = [
        "<|bos|><|system|>Be kind.<|end|><|user|>What is it?", RED, "Or", BLUE,
        "<|end|><|assistant|>A hat.<|end|><|user|>", RED, "And now?<|end|><|assistant|>",
    ]  # fmt: skip
    for request in server.backend.requests:
        assert list(request.prompt) == rendered(tokenizer, *parts)
        assert request.pictures == tuple(map(picture_of, (RED, BLUE, RED)))
    assert len(server.backend.requests) == 2


async def test_a_placeholder_that_a_user_typed_is_text(server):
    typed = "[IMG] [IMG_BREAK][IMG_END]"
    await server.chat([part(BLUE), {"type": "text", "text": typed}])
    await server.chat(typed)
    pictured, plain = server.backend.requests
    tokenizer = server.backend.model.tokenizer
    assert not tokenizer.pictures.tokens & set(plain.prompt)
    assert plain.pictures == ()
    shown = places(tokenizer, BLUE)
    assert list(pictured.prompt[2 : 2 + len(shown)]) == shown
    assert pictured.prompt[2 + len(shown) :] == plain.prompt[2:]


async def test_numbers_of_places_can_not_be_sent_as_tokens(server):
    number = places(server.backend.model.tokenizer, RED)[0]
    refused = await server.complete([1, number])
    assert refused.status == 400
    assert f"no token {number}" in refused.error["message"]
    told = await server.ask_ollama("/api/generate", prompt="a", context=[1, number])
    assert told.status == 400


async def test_tools_and_formats_go_with_pictures(server):
    server.backend.say('{"color": "red"}')
    schema = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
    form = {"type": "json_schema", "json_schema": {"name": "color", "schema": schema}}
    tools = [{"type": "function", "function": {"name": "paint", "parameters": schema}}]
    formed = await server.chat([part(RED), TEXT], response_format=form)
    assert json.loads(formed.json["choices"][0]["message"]["content"]) == {"color": "red"}
    assert (await server.chat([part(RED), TEXT], tools=tools)).status == 200
    with_form, with_tools = server.backend.requests
    assert with_form.grammar
    assert with_form.pictures == with_tools.pictures == (picture_of(RED),)


async def test_a_tools_result_may_be_a_picture(server):
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "See: "}, block(RED)]}
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result, TEXT]},
    ]
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        await client.messages.create(model=MODEL, max_tokens=9, messages=messages, tools=tools)
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    output = [{"type": "input_text", "text": "See: "}, {"type": "input_image", "image_url": url(RED)}]
    asked = [
        {"role": "user", "content": "Look."},
        call,
        {"type": "function_call_output", "call_id": "c1", "output": output},
        {"role": "user", "content": "What is it?"},
    ]
    functions = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    async with server.client() as client:
        await client.responses.create(model=MODEL, input=asked, tools=functions)
    shown = rendered(server.backend.model.tokenizer, "<|tool|>See: ", RED, "<|end|><|user|>What is it?<|end|>")
    for request in server.backend.requests:
        assert request.pictures == (picture_of(RED),)
        assert " ".join(map(str, shown)) in " ".join(map(str, request.prompt))
    assert len(server.backend.requests) == 2


async def test_a_picture_in_an_answer_is_shown_to_the_template(server):
    said = [{"type": "output_text", "text": "This:"}, {"type": "input_image", "image_url": url(RED)}]
    response = [
        {"role": "user", "content": "Show."},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "And?"},
    ]
    chat = [
        {"role": "user", "content": "Show."},
        {"role": "assistant", "content": [{"type": "text", "text": "This:"}, part(RED)]},
    ]
    assert (await server.post("/v1/responses", {"model": MODEL, "input": response})).status == 200
    assert (
        await server.post(
            "/v1/chat/completions", {"model": MODEL, "messages": [*chat, {"role": "user", "content": "And?"}]}
        )
    ).status == 200
    by_response, by_chat = server.backend.requests
    assert by_response.pictures == by_chat.pictures == (picture_of(RED),)
    assert by_response.prompt == by_chat.prompt


async def test_a_response_goes_on_after_one_with_a_picture(server):
    content = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": url(RED), "detail": "low"},
    ]
    async with server.client() as client:
        first = await client.responses.create(model=MODEL, input=[{"role": "user", "content": content}])
        await client.responses.create(model=MODEL, input="Sure?", previous_response_id=first.id)
        (item,) = (await client.responses.input_items.list(first.id)).data
    _, request = server.backend.requests
    parts = ["<|bos|><|user|>What is it?", RED, "<|end|><|assistant|>A hat.<|end|><|user|>Sure?<|end|><|assistant|>"]
    assert list(request.prompt) == rendered(server.backend.model.tokenizer, *parts)
    assert item.content[1].image_url == url(RED)
    assert item.content[1].detail == "low"


async def test_the_official_client_of_ollama_sends_files(server, ollama_client, tmp_path):
    path = tmp_path / "hat.png"
    path.write_bytes(RED)
    await ollama_client.chat(MODEL, [{"role": "user", "content": "What is it?", "images": [str(path), BLUE]}])
    await ollama_client.generate(MODEL, images=[RED])
    chat, generated = server.backend.requests
    assert chat.pictures == (picture_of(RED), picture_of(BLUE))
    assert list(generated.prompt) == rendered(
        server.backend.model.tokenizer, "<|bos|><|user|>", RED, "<|end|><|assistant|>"
    )


# --- counted, shortened ---


async def test_places_are_counted_and_told_as_the_familys_token(server):
    tokenizer = server.backend.model.tokenizer
    told = await server.post("/tokenize", whole("/v1/chat/completions", RED))
    marks = tokenizer.pictures
    expected = [
        marks.place if token >= 2056 else token
        for token in rendered(tokenizer, "<|bos|><|user|>", RED, "What is it?<|end|><|assistant|>")
    ]
    assert told.json["tokens"] == expected
    spelled = await server.post("/detokenize", {"model": MODEL, "tokens": told.json["tokens"]})
    row = "[IMG]" * 8
    assert "[IMG_BREAK]".join([row] * 4) + "[IMG_END]What" in spelled.json["prompt"]
    counted = await server.post("/v1/responses/input_tokens", whole("/v1/responses", RED))
    assert counted.json["input_tokens"] == len(expected)
    body = {name: value for name, value in whole("/v1/messages", RED).items() if name != "max_tokens"}
    assert (await server.post("/v1/messages/count_tokens", body)).json == {"input_tokens": len(expected)}


async def test_pictures_that_fill_the_context_are_too_many(server):
    server.backend.model.context = 60
    refused = await server.chat([part(RED), part(RED)])
    assert refused.error["code"] == ContextExceeded.code
    assert "the prompt has 76 tokens" in refused.error["message"]
    assert (await server.chat([part(RED)])).status == 200


async def test_a_chat_is_shortened_with_its_pictures(server):
    server.backend.model.context = 110
    turns = [{"role": "user", "content": [part(each)]} for each in (RED, BLUE, RED, BLUE)]
    body = {"model": MODEL, "messages": turns, "truncation": "auto"}
    assert (await server.post("/v1/chat/completions", body)).status == 200
    (request,) = server.backend.requests
    assert request.pictures == tuple(map(picture_of, (BLUE, RED, BLUE)))
    last = [{"role": "user", "content": [part(RED), {"type": "text", "text": "word " * 200}]}]
    assert (await server.post("/v1/chat/completions", {**body, "messages": last})).status == 200
    assert server.backend.requests[1].pictures == (picture_of(RED),)


# --- refused ---


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GIF89a", "no PNG, JPEG or WebP"),
        (RED[:60], "damaged, or its end is missing"),
        (filed(drawn(9, 9), "BMP"), "no PNG, JPEG or WebP"),
    ],
    ids=["a GIF", "half", "a BMP"],
)
async def test_what_can_not_be_decoded_is_refused(server, path, data, why):
    refused = await server.post(path, whole(path, data))
    assert refused.status == 400
    assert why in refused.body.decode()
    assert "0x" not in refused.body.decode()
    assert server.backend.requests == []


@pytest.mark.parametrize("path", PATHS)
async def test_a_model_without_pictures_refuses_them_by_name(server, path):
    server.backend.model.pictures = None
    refused = await server.post(path, whole(path, RED))
    assert refused.status == 400
    assert f"{MODEL} takes no pictures, only text." in refused.body.decode()
    server.backend.for_pictures = ["org/seer"]
    named = await server.post(path, whole(path, RED))
    assert "These loaded models do: org/seer." in named.body.decode()
    assert server.backend.requests == []


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, "this server fetches nothing"),
        ({"type": "image_url", "image_url": "http://127.0.0.1/a.png"}, "this server fetches nothing"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "this server fetches nothing"),
        ({"type": "image_url", "image_url": {"url": "data:image/png,abc"}}, "this server fetches nothing"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,a*b="}}, "not base64"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}, "has no bytes"),
        ({"type": "image_url", "image_url": {}}, "has no picture"),
        ({"type": "input_image", "file_id": "file-1"}, "this server keeps no files"),
    ],
)
async def test_only_data_urls_are_taken(server, given, why):
    chat = await server.chat([given])
    assert chat.status == 400
    assert why in chat.error["message"]
    assert chat.error["param"] == "messages[0].content"
    response = await server.post("/v1/responses", {"model": MODEL, "input": [{"role": "user", "content": [given]}]})
    assert response.status == 400
    assert why in response.error["message"]
    assert response.error["param"].startswith("input")


async def test_files_and_addresses_of_anthropics_clients_are_refused(server):
    for source, why in (
        ({"type": "url", "url": "https://x/y.png"}, "fetches"),
        ({"type": "file", "file_id": "f"}, "keeps"),
    ):
        body = {
            "model": MODEL,
            "max_tokens": 9,
            "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}],
        }
        refused = await server.post("/v1/messages", body)
        assert refused.status == 400
        assert why in refused.json["error"]["message"]


async def test_pixels_count_in_what_requests_hold(serve):
    """A small file may have very many."""
    server = await serve(body_limit=40_000)
    square = filed(Image.new("RGB", (64, 64), "red"))
    assert (await server.chat([part(square), TEXT])).status == 200
    refused = await server.chat([part(square)] * MAX_PICTURES)
    assert refused.status == 429
    assert "are already in flight" in refused.error["message"]
    assert (await server.chat([part(square), TEXT])).status == 200, "an answer gives back what its request held"


async def test_base64_of_a_mail_or_a_shell_has_line_breaks(server):
    code = base64.encodebytes(RED).decode()
    assert "\n" in code.strip()
    answer = await server.chat([{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{code}"}}, TEXT])
    assert answer.status == 200


async def test_texts_behind_each_other_stay_apart_beside_a_picture(server):
    content = [block(RED), {"type": "text", "text": "<hint>"}, {"type": "text", "text": "What is it?"}]
    for given in (content, content[1:]):
        body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": given}]}
        assert (await server.post("/v1/messages", body)).status == 200
        tokens = [token for token in server.backend.requests[-1].prompt if token < 2048]
        assert "<hint>\nWhat is it?" in server.backend.model.tokenizer.decode(tokens)


async def test_pictures_and_their_bytes_are_bounded(server):
    many = await server.chat([part(RED)] * (MAX_PICTURES + 1))
    assert many.status == 400
    assert f"33 pictures; {MAX_PICTURES} are the most" in many.error["message"]
    big = await server.chat([part(RED + bytes(MAX_PICTURE_BYTES))])
    assert big.status == 400
    assert f"more than {MAX_PICTURE_BYTES:,} bytes" in big.error["message"]


async def test_a_template_that_leaves_a_picture_out_is_no_reason_to_answer_without_it(server):
    hf = server.backend.model.tokenizer._hf
    own = hf.chat_template
    try:
        hf.chat_template = "{{ messages[0].content[1].text }}"
        refused = await server.chat([part(RED), TEXT])
    finally:
        hf.chat_template = own
    assert refused.status == 400
    assert "shows 0 of the 1 pictures" in refused.error["message"]


async def test_where_only_text_can_be_pictures_are_refused(server):
    predicted = await server.chat("a", prediction={"type": "content", "content": [part(RED)]})
    assert predicted.error["param"] == "prediction.content"
    adapter = {"user": {"start": "U:"}, "assistant": {"start": "A:"}}
    adapted = await server.chat([part(RED)], adapter=adapter)
    assert adapted.error["param"] == "adapter"
    embedded = await server.post("/v1/embeddings", {"model": MODEL, "input": [[part(RED)]]})
    assert embedded.status == 400


# --- told ---


async def test_models_tell_that_they_take_pictures(server):
    assert "vision" in (await server.post("/api/show", {"model": MODEL})).json["capabilities"]
    async with server.http.get(f"{server.url}/v1/models/{MODEL}") as response:
        assert (await response.json())["capabilities"] == {"vision": True}
