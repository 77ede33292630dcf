"""Folders of models, each damaged in another way, that requests name."""

import asyncio
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import wire_http
from target import Target

from tests.conftest import MODEL, ROOT, Node, until
from tests.opened import Opened

BUILTIN = ROOT / "node" / "builtin" / MODEL
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 3_000_000, 2**31, 2**63, 10**30, 1e308, -1e308, 0.5, "", "x", "x" * 10_000, [], {}),
    *([[]], {"a": {}}, [1, 2, 3], "../../x", "{{", "null", [None] * 1000),
)
TEMPLATES = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "{{ 'a' * 10 ** 12 }}",
    "{{ messages[0].content.__class__.__mro__ }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% include 'x' %}",
    "{{ raise_exception('no') }}",
    "{%",
    "{{ messages }}" * 5000,
    "{{ '%2000000000d' % 1 }}",
    "",
)
PATTERNS = ("(a+)+$", "(?<=a+)b", "(", "\\p{Nonsense}", "(.*)*x", "[[:alpha:]]{1,99999}", "")
PATHS = (
    *(
        "vocab",
        "vocab_file",
        "merges",
        "merges_file",
        "tokenizer_file",
        "spm_file",
        "source_spm",
        "emoji_file",
        "vocab_size",
    ),
    *(
        "name_or_path",
        "_name_or_path",
        "init_inputs",
        "fast_tokenizer_files",
        "auto_map",
        "model_file",
        "chat_template",
    ),
    *("special_tokens_map_file", "added_tokens_file", "gguf_file", "unk_token", "additional_special_tokens", "errors"),
    *("tokenizer_object", "sp_model_kwargs", "monolingual_vocab_file", "chat_template_type", "tool_parser_type"),
)
"""Keys of settings that are paths for a class of transformers, that name code, or that are neither."""
CLASSES = (
    *("BertTokenizer", "BartphoTokenizer", "EsmTokenizer", "ProphetNetTokenizer", "GPT2Tokenizer", "LlamaTokenizer"),
    *("T5Tokenizer", "MarianTokenizer", "RagTokenizer", "AutoTokenizer", "TokenizersBackend", "Wav2Vec2CTCTokenizer"),
)
PRIVATE = "cHJpdmF0ZSB0byB0aGUgdXNlcg"
"""A line of a file that is not a model's."""
RANDOM_BYTES = 40
BATCH = 50


async def attack(target: Target, count: int, seed: int) -> None:
    """Attack with damaged folders. Each exists only for its request, because nodes list all models that they have."""
    private = _private(target.models)
    private.write_text(f"[UNK]\n{PRIVATE}\n")
    opened = Opened(private)
    for first in range(0, count, BATCH):
        whole = target.models / f"whole-{first}"
        names = [f"broken-{number}" for number in range(first, min(first + BATCH, count))]
        for name in names:
            await asyncio.to_thread(_make, target.models / name, random.Random(f"{seed} {name}"))
        await asyncio.to_thread(shutil.copytree, BUILTIN, whole)
        # when this one is listed, so are the others
        await asyncio.to_thread(until, lambda whole=whole: _lists(target, whole.name), "new models are listed")
        try:
            await target.each("model", names, lambda node, name: _ask(target, node, name))
        finally:
            for folder in (whole, *(target.models / name for name in names)):
                await asyncio.to_thread(shutil.rmtree, folder)
        if opened:
            target.findings.complain(f"model: one of {names[0]} to {names[-1]} had {private} opened")


def _private(models: Path) -> Path:
    return models.parent / "private"


def _lists(target: Target, model: str) -> bool:
    target.check_processes("broken models")
    return all(model in [each["id"] for each in node.get("/v1/models").json["data"]] for node in target.nodes)


async def _ask(target: Target, node: Node, name: str) -> str:
    body = {"model": name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
    damage = (target.models / name / ".damage").read_text()
    words = []
    for path, asked in (
        ("/v1/chat/completions", body),
        ("/v1/detokenize", {"model": name, "tokens": [0, 1, 2, 3]}),
    ):
        status, answer = await wire_http.exchange(node.port, wire_http.post(path, asked))
        if not status:
            target.findings.complain(f"model: no answer about one with {damage}")
        if PRIVATE.encode() in answer:
            target.findings.complain(f"model: a private file is told by one with {damage}")
        words.append(target.check_answer("model", damage, status, answer))
    return words[0]


def _make(folder: Path, rng: random.Random) -> None:
    shutil.copytree(BUILTIN, folder)
    damages: tuple[Callable[[Path, random.Random], str], ...] = (
        *(
            _config,
            _config,
            _config,
            _bytes,
            _bytes,
            _header,
            _header,
            _template,
            _tokenizer,
            _paths,
            _paths,
            _json,
            _names,
            _index,
        ),
    )
    told = [rng.choice(damages)(folder, rng) for _ in range(rng.choice([1, 1, 1, 2]))]
    (folder / ".damage").write_text("; ".join(told))


def _config(folder: Path, rng: random.Random) -> str:
    return _change(folder / "config.json", rng)


def _change(file: Path, rng: random.Random) -> str:
    """Change or remove one value somewhere in a JSON file."""
    if not file.is_file():
        return f"no {file.name}"
    try:
        whole = json.loads(file.read_text())
    except (ValueError, RecursionError):
        return f"{file.name} already damaged"
    at = whole
    path = []
    while isinstance(at, dict | list) and at:
        key = rng.choice(list(at)) if isinstance(at, dict) else rng.randrange(len(at))
        path.append(key)
        if isinstance(at[key], dict | list) and at[key] and rng.random() < 0.7:
            at = at[key]
            continue
        value = rng.choice((*VALUES, "removed"))
        if value == "removed":
            del at[key]
        else:
            at[key] = value
        file.write_text(json.dumps(whole))
        return f"{file.name} {path}: {str(value)[:60]!r}"
    return f"{file.name} is empty"


def _bytes(folder: Path, rng: random.Random) -> str:
    """Change, remove or add some bytes of a file."""
    file = rng.choice([path for path in sorted(folder.iterdir()) if path.is_file()])
    data = bytearray(file.read_bytes())
    at = rng.randrange(len(data) + 1)
    match rng.choice(["cut", "more", "others", "empty"]):
        case "cut":
            del data[at:]
        case "more":
            data[at:at] = rng.randbytes(RANDOM_BYTES)
        case "others":
            data[at : at + RANDOM_BYTES] = rng.randbytes(RANDOM_BYTES)
        case _:
            data.clear()
    file.unlink()
    file.write_bytes(data)
    return f"{file.name} damaged at {at}"


def _header(folder: Path, rng: random.Random) -> str:
    """Change the header of a safetensors file."""
    files = [path for path in sorted(folder.glob("*.safetensors")) if path.is_file()]
    if not files:
        return "no weights"
    file = rng.choice(files)
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + size])
        name = rng.choice([name for name in header if name != "__metadata__"])
    except (ValueError, IndexError):
        return "a header already damaged"
    match rng.choice(["dtype", "shape", "offsets", "name", "twice", "length", "key"]):
        case "dtype":
            header[name]["dtype"] = rng.choice(["F64", "BOOL", "I8", "poem", None, 5])
        case "shape":
            header[name]["shape"] = rng.choice([[], [0], [-1], [2**40, 2**40], "x", [1.5], [1] * 70, None])
        case "offsets":
            header[name]["data_offsets"] = rng.choice([[0, 0], [5, 1], [0, 2**60], [-8, 8], "x", [0], None])
        case "name":
            header[rng.choice(["", "x", f"{name}.x", "../x", "model.layers.99.x"])] = header.pop(name)
        case "twice":
            header[f"{name}_copy"] = header[name]
        case "key":
            header[name] = rng.choice([None, [], "x", {}])
        case _:
            file.write_bytes(rng.choice([2**63, 0, 1, 10**9]).to_bytes(8, "little") + data[8:])
            return f"{file.name}: length of the header"
    changed = json.dumps(header).encode()
    file.write_bytes(len(changed).to_bytes(8, "little") + changed + data[8 + size :])
    return f"{file.name}: {name} {str(header.get(name))[:80]}"


def _template(folder: Path, rng: random.Random) -> str:
    template = rng.choice(TEMPLATES)
    _replace(folder / "chat_template.jinja", template)
    return f"the template {template[:80]}"


def _tokenizer(folder: Path, rng: random.Random) -> str:
    if rng.random() < 0.6:
        return _change(folder / rng.choice(["tokenizer.json", "tokenizer_config.json"]), rng)
    file = folder / "tokenizer.json"
    pattern = rng.choice(PATTERNS)
    try:
        whole = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return "a tokenizer already damaged"
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    whole[rng.choice(["pre_tokenizer", "normalizer"])] = split
    file.write_text(json.dumps(whole))
    return f"a tokenizer that splits at {pattern}"


def _paths(folder: Path, rng: random.Random) -> str:
    """Name a private file, or code, where a tokenizer's settings have data."""
    private = str(_private(folder.parent))
    keys = rng.sample(PATHS, rng.choice([1, 3, len(PATHS)]))
    value = rng.choice([private, [private], {"model_file": private}, f"../../{Path(private).name}", 0, "evil.Evil"])
    hostile = dict.fromkeys(keys, value) | {"tokenizer_class": rng.choice(CLASSES), "trust_remote_code": True}
    names = rng.sample(["tokenizer_config.json", "special_tokens_map.json", "config.json"], rng.choice([1, 2, 3]))
    for file in map(folder.joinpath, names):
        try:
            whole = json.loads(file.read_text())
        except (OSError, ValueError, RecursionError):
            whole = {}
        _replace(file, json.dumps({**whole, **hostile} if isinstance(whole, dict) else hostile))
    if rng.random() < 0.5:
        options: dict[str, Any] = {"merges": [], "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
        model = {"type": rng.choice(["WordPiece", "BPE"]), "vocab": private, "unk_token": "[UNK]", **options}
        _replace(folder / "tokenizer.json", json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    elif rng.random() < 0.5:
        _remove(folder / "tokenizer.json")
        _replace(
            folder / rng.choice(["vocab.txt", "vocab.json", "tokenizer.model"]),
            rng.choice(["[UNK]", json.dumps(private)]),
        )
    return f"{hostile} in {names}"


def _json(folder: Path, rng: random.Random) -> str:
    """Replace a JSON file by other JSON."""
    file = rng.choice(sorted(folder.glob("*.json")))
    text = rng.choice(
        ["[]", "null", "5", '"x"', "{}", "[" * 5000, '{"a":' * 5000, "NaN", "\ufeff{}", "{" + '"a": 1,' * 9]
    )
    _replace(file, text)
    return f"{file.name} is {text[:30]}"


def _names(folder: Path, rng: random.Random) -> str:
    """Rename a file, or replace it by a folder, a dangling link, or a link to elsewhere."""
    file = rng.choice([path for path in sorted(folder.iterdir()) if path.is_file()])
    match rng.choice(["gone", "folder", "loop", "elsewhere", "other"]):
        case "gone":
            file.unlink()
        case "folder":
            file.unlink()
            file.mkdir()
        case "loop":
            file.unlink()
            file.symlink_to(file.name)
        case "elsewhere":
            file.unlink()
            file.symlink_to("/dev/zero")
        case _:
            file.rename(folder / f"other-{file.name}")
    return f"{file.name} gone or other"


def _index(folder: Path, rng: random.Random) -> str:
    """Make the index name other files."""
    where: Any = rng.choice(
        ["model.safetensors", "../x.safetensors", "/dev/zero", "", "x" * 5000, 5, None, [], "a/b.safetensors"]
    )
    names = ["model.embed_tokens.weight", *(f"model.layers.{n}.mlp.up_proj.weight" for n in rng.sample(range(99), 5))]
    index = {"weight_map": dict.fromkeys(names, where)}
    _replace(folder / "model.safetensors.index.json", json.dumps(index))
    return f"an index to {str(where)[:60]}"


def _replace(file: Path, text: str) -> None:
    _remove(file)
    file.write_text(text)


def _remove(file: Path) -> None:
    """Remove a file, or a folder or a link that an earlier damage has left."""
    if file.is_dir():
        file.rmdir()
    file.unlink(missing_ok=True)
