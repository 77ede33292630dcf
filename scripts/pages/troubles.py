"""docs/troubleshooting.md: a section for each code of a warning and of an error, read from where the program defines them.

The program is read as text: nothing is imported, so that this is quick, and a renamed type changes nothing here. `advice.toml`
has what the program's own texts can't say. A code that neither explains is an error.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parents[2]
ADVICE = tomllib.loads((Path(__file__).parent / "advice.toml").read_text())
UNKNOWN = "…"


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
    """Each code of node/core/health.py with its severity, its text and its hint."""
    tree = ast.parse((ROOT / "node" / "core" / "health.py").read_text())
    (codes,) = (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == "Code")
    value = {
        each.targets[0].id: ast.literal_eval(each.value)
        for each in codes.body
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
    }
    told: dict[str, str] = {}
    for function in (each for each in tree.body if isinstance(each, ast.FunctionDef)):
        names = [each.attr for each in ast.walk(function) if _is_of(each, "Code")]
        issue = next((each for each in ast.walk(function) if isinstance(each, ast.Call) and _is_issue(each)), None)
        if issue and names:
            told |= dict.fromkeys((value[name] for name in names), _warning(function, issue))
    missing = set(value.values()) - set(told)
    if missing:
        raise SystemExit(f"No function of node/core/health.py makes {', '.join(sorted(missing))}.")
    yield from told.items()


def _is_of(node: ast.AST, name: str) -> TypeGuard[ast.Attribute]:
    """Whether it is an attribute of that class, like Code.LOADING."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name


def _is_issue(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "Issue"


def _warning(function: ast.FunctionDef, issue: ast.Call) -> str:
    severities = [each.attr.lower() for each in ast.walk(issue.args[1]) if _is_of(each, "Severity")]
    values: dict[str, list[ast.expr]] = {}
    for each in ast.walk(function):
        if isinstance(each, ast.Assign):
            for target in each.targets:
                names, given = _pairs(target, each.value)
                for name, value in zip(names, given, strict=True):
                    values.setdefault(name, []).append(value)
    texts, hints = (
        [re.sub(f"{UNKNOWN}+", UNKNOWN, text) for text in _texts(argument, values) if text not in ("", UNKNOWN)]
        for argument in (*issue.args[2:4], ast.Constant(""))[:2]
    )
    quoted = " or ".join(f"“{text.replace(UNKNOWN + '.', UNKNOWN)}”" for text in texts)
    return f"*{' or '.join(severities)}*{': ' if quoted else ''}{quoted}\n\n{' Or: '.join(hints)}"


def _pairs(target: ast.expr, value: ast.expr) -> tuple[list[str], list[ast.expr]]:
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    given = value.elts if isinstance(value, ast.Tuple) and isinstance(target, ast.Tuple) else [value]
    return [each.id for each in targets if isinstance(each, ast.Name)], list(given)


def _texts(value: ast.expr, values: dict[str, list[ast.expr]]) -> Iterator[str]:
    """The texts that an expression may have, with what is not known beforehand as an ellipsis."""
    match value:
        case ast.Constant(str(text)):
            yield text
        case ast.JoinedStr(parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else UNKNOWN for part in parts)
        case ast.IfExp():
            yield from _texts(value.body, values)
            yield from _texts(value.orelse, values)
        case ast.BoolOp():
            yield from _texts(value.values[-1], values)
        case ast.Call(args=[first, *_]):
            yield from _texts(first, values)
        case ast.Call(func=ast.Attribute(value=inner)):
            yield from _texts(inner, values)
        case ast.Name(name) if name in values:
            for each in values[name]:
                yield from _texts(each, values)
        case _:
            yield UNKNOWN


# --- errors -----------------------------------------------------------------------------------------------------------


def _errors() -> Iterator[tuple[str, str]]:
    """Each code of an error with its status and what its class's docstring says, of all classes with that code."""
    defined = {
        each.name: each
        for folder in ("node", "api")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "Error" in (source := path.read_text()) or "errors" in source
        for each in ast.parse(source).body
        if isinstance(each, ast.ClassDef)
    }
    for name, each in defined.items():
        if "PippinError" in (ancestors := _ancestors(name, defined)):
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
