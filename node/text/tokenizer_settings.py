"""Removes from a copy of tokenizer files all that is not data, in a sandbox.

transformers makes arguments of constructors of the JSON in the folder: some are paths, which it opens, and some name code.
So only known keys stay, and only with values of their own type. Does not import MLX or transformers.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from node.core.errors import ModelBroken
from node.text.tokenizer_files import writing

MAX_TOKEN_ID = 2**31 - 1
"""MLX computes with ids as int32."""


def clean(folder: Path) -> None:
    """Clean the copy in a folder: unknown keys are dropped. Raises ModelBroken for a known one of another type, and
    NotReady if the folder can't be written.

    All ids that end an answer are in generation_config.json afterwards.
    """
    try:
        _write(folder / "generation_config.json", {"eos_token_id": ends(folder)})
        _rewrite(folder / "config.json", _MODEL_KEYS.get)
        _rewrite(folder / "tokenizer_config.json", lambda key: _SETTINGS.get(key) or _special(key))
        _rewrite(folder / "special_tokens_map.json", _special)
        _rewrite(folder / "added_tokens.json", lambda _: _number)
        # A vocabulary that is a text would be opened as a path, and one that is a number as a file of this process.
        model, vocabulary = _read(folder / "tokenizer.json").get("model", {}), _read(folder / "vocab.json")
        whole = isinstance(model.get("vocab", {}), dict | list) and isinstance(model.get("merges", []), list)
        if not whole or not all(isinstance(token, int) for token in vocabulary.values()):
            raise ValueError("tokenizer.json or vocab.json has no list of tokens")
        _read(folder / "tekken.json")
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ModelBroken(f"The tokenizer can't be read: {type(error).__name__}: {error}"[:500]) from error


def ends(folder: Path) -> list[int]:
    """EOS tokens of the model's configs; chat models often have more than their tokenizer. Raises ValueError."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        config = _read(folder / name)
        for part in (config, config.get("text_config") or {}):
            eos = part.get("eos_token_id")
            found |= {eos} if isinstance(eos, int) else set(eos or ())
    if not all(isinstance(token, int) and token <= MAX_TOKEN_ID for token in found):
        raise ValueError(f"eos_token_id is {found!r:.100}, not token ids")
    return sorted(token for token in found if token >= 0)  # -1 stands for no token


# --- kinds of values --------------------------------------------------------------------------------------------------

Kind = Callable[[Any], Any]
"""Returns what may stay of a value. Raises ValueError for a value of another type."""


def _check(fits: bool, value: Any) -> Any:
    if not fits:
        raise ValueError(f"it is {value!r:.80}")
    return value


def _of(*types: type) -> Kind:
    """A value of one of the types themselves, as a bool is an int as well."""
    return lambda value: _check(type(value) in types, value)


_flag, _number, _string = _of(bool), _of(int, float), _of(str)


def _text(pattern: str) -> Kind:
    matches = re.compile(pattern, re.ASCII).fullmatch
    return lambda value: _check(isinstance(value, str) and matches(value) is not None, value)


def _token(value: Any) -> Any:
    """A token, as a text or with its options."""
    if isinstance(value, str):
        return value
    _check(isinstance(value, dict) and isinstance(value.get("content"), str), value)
    options = {name: _flag(value[name]) for name in _TOKEN_OPTIONS if name in value}
    typed = {"__type": "AddedToken"} if value.get("__type") == "AddedToken" else {}
    return {"content": value["content"], **options, **typed}


def _entries(names: re.Pattern[str], kind: Kind) -> Kind:
    """An object. Entries of other names are dropped."""

    def entries(value: Any) -> Any:
        _check(isinstance(value, dict), value)
        return {name: kind(each) for name, each in value.items() if names.fullmatch(name)}

    return entries


def _tokens(value: Any) -> Any:
    """A list of tokens, or tokens by name."""
    return list(map(_token, value)) if isinstance(value, list) else _entries(_SPECIAL_TOKEN, _token)(value)


def _template(value: Any) -> Any:
    """A chat template, or templates by name."""
    if isinstance(value, list):
        value = {each["name"]: each["template"] for each in value}
    return value if isinstance(value, str) else _entries(re.compile(r"[\w.-]+"), _string)(value)


_SPECIAL_TOKEN = re.compile(r"\w*_token", re.ASCII)
_NAMED = {f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")}
_MODEL_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
_TOKEN_OPTIONS = ("single_word", "lstrip", "rstrip", "normalized", "special")

# --- keys -------------------------------------------------------------------------------------------------------------

_SETTINGS: Mapping[str, Kind] = {
    **dict.fromkeys(
        (
            *("add_bos_token", "add_eos_token", "add_prefix_space", "clean_text", "clean_up_tokenization_spaces"),
            *("do_basic_tokenize", "do_lower_case", "do_lowercase", "do_upper_case", "fix_mistral_regex"),
            *("keep_accents", "legacy", "legacy_behaviour", "remove_space", "spaces_between_special_tokens"),
            *("split_by_punct", "split_special_tokens", "strip_accents", "tokenize_chinese_chars", "trim_offsets"),
            "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
        ),
        _flag,
    ),
    **dict.fromkeys(("extra_ids", "model_max_length", "offset", "unk_id"), _number),
    **dict.fromkeys(("padding_side", "truncation_side"), _text("left|right")),
    **dict.fromkeys(("chat_template_type", "tool_parser_type", "tokenizer_class"), _text(r"\w+")),
    "added_tokens_decoder": _entries(re.compile("[0-9]{1,10}"), _token),
    "chat_template": _template,
    "errors": _text("ignore|replace|strict"),
}
_MODEL_KEYS: Mapping[str, Kind] = {
    **dict.fromkeys(("model_type", "transformers_version", "tokenizer_class"), _text(r"[\w.+-]+")),
    # Only compared with known names, and often a path.
    **dict.fromkeys(("model_name", "_name_or_path"), lambda value: value if _MODEL_ID.fullmatch(str(value)) else ""),
}


def _special(key: str) -> Kind | None:
    if key in {"additional_special_tokens", "extra_special_tokens"}:
        return _tokens
    if key in _NAMED:
        return _token
    if _SPECIAL_TOKEN.fullmatch(key):
        return lambda value: _token(value) if isinstance(value, str | dict) else None
    return None


# --- files ------------------------------------------------------------------------------------------------------------


def _rewrite(path: Path, kind_of: Callable[[str], Kind | None]) -> None:
    if not path.exists():
        return
    kept: dict[str, Any] = {}
    for key, value in _read(path).items():
        if kind := kind_of(key):
            try:
                kept[key] = None if value is None else kind(value)  # instead of a token: there is none
            except (ValueError, TypeError, LookupError) as error:
                raise ValueError(f"{key!r:.80} of {path.name} has a wrong value: {error}") from error
    _write(path, kept)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    with writing(path.parent):
        path.write_text(json.dumps(content), "utf-8")


def _read(path: Path) -> dict[str, Any]:
    """A file's JSON object; empty if there is no file."""
    found = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} is not a JSON object")  # noqa: TRY004 - a fault of the file
    return found
