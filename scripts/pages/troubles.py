"""docs/troubleshooting.md: a section for each code of a warning and of an error, read from where the program defines them.

Warnings are those of `node/core/warning_codes.py`. Errors are read as text, so that nothing else is imported. `advice.toml` has what
the program's own texts can't say. A code that neither explains is an error.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from node.core.warning_codes import Code

ROOT = Path(__file__).resolve().parents[2]
ADVICE = tomllib.loads((Path(__file__).parent / "advice.toml").read_text())
UNKNOWN = "…"
"""For what is not known beforehand."""


def page(_: str) -> str:
    """Return the whole page."""
    warnings = dict(sorted(_warnings()))
    errors: dict[str, str] = {}
    for code, told in sorted(_errors()):
        errors[code] = f"{errors[code]} {told}" if code in errors else told
    unused = set(ADVICE["codes"]) - {*warnings, *errors}
    if unused:
        raise SystemExit(f"scripts/pages/advice.toml has codes that the program lacks: {', '.join(sorted(unused))}")
    sections = [
        "# Troubleshooting\n\n<!-- Written by scripts/pages.py from the program and from scripts/pages/advice.toml. -->\n",
        ADVICE["symptoms"],
        f"## Warnings\n\n{ADVICE['warnings']}",
        *(f"### {code}\n\n{_joined(told, code)}" for code, told in warnings.items()),
        f"## Errors\n\n{ADVICE['errors']}",
        *(f"### {code}\n\n{_joined(told, code)}" for code, told in errors.items()),
    ]
    return "\n".join(section.strip() + "\n" for section in sections)


def _joined(told: str, code: str) -> str:
    advice, told = str(ADVICE["codes"].get(code, "")), told.strip()
    if not advice and "." not in told.removesuffix("."):
        raise SystemExit(
            f"Nothing explains {code}: give its class a docstring, or write of it in scripts/pages/advice.toml."
        )
    return (told + (" " if told.endswith(".") else "\n\n") + advice).strip()


# --- warnings ---------------------------------------------------------------------------------------------------------


def _warnings() -> Iterator[tuple[str, str]]:
    """Each code with its severity, its text and its hint."""
    for code in Code:
        text, hint = (re.sub(r"(\{[^}]*\})+", UNKNOWN, each) for each in (code.wording, code.hint))
        quoted = "" if text == UNKNOWN else f": “{text.replace(UNKNOWN + '.', UNKNOWN)}”"
        yield code.value, f"*{code.severity}*{quoted}\n\n{'' if hint == UNKNOWN else hint}"


# --- errors -----------------------------------------------------------------------------------------------------------


def _errors() -> Iterator[tuple[str, str]]:
    """Each class of an error that has a code of its own: the code, and its status with the class's docstring."""
    defined = {
        each.name: each
        for folder in ("node", "api")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "Error" in (source := path.read_text()) or "errors" in source
        for each in ast.parse(source).body
        if isinstance(each, ast.ClassDef)
    }
    for name, each in defined.items():
        ancestors = _ancestors(name, defined)
        if "PippinError" in ancestors and "code" in dict(_constants(each)):
            has = {key: value for ancestor in reversed(ancestors) for key, value in _constants(defined[ancestor])}
            again = ", with `Retry-After`" if has.get("retry_after") else ""
            text = "" if name == "PippinError" else " ".join((ast.get_docstring(each) or "").split())
            yield str(has["code"]), f"{has['status']}{again}. {text}".strip()


def _ancestors(name: str, defined: dict[str, ast.ClassDef]) -> list[str]:
    """The class and its bases, as far as they are the program's."""
    if name not in defined:
        return []
    bases = [base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in defined[name].bases]
    return [name, *(ancestor for base in bases if base != name for ancestor in _ancestors(base, defined))]


def _constants(defined: ast.ClassDef) -> Iterator[tuple[str, object]]:
    for each in defined.body:
        target = each.targets[0] if isinstance(each, ast.Assign) else getattr(each, "target", None)
        if isinstance(target, ast.Name) and isinstance(getattr(each, "value", None), ast.Constant):
            yield target.id, each.value.value  # type: ignore[attr-defined]
