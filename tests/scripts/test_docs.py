"""The documents agree with the program."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from unittest.mock import MagicMock

import pytest
import yaml

from node.__main__ import EXIT_INTERRUPTED
from node.core import errors
from node.core.units import format_bytes
from node.core.usage import EXIT_USAGE
from node.core.warning_codes import Code
from node.daemon.daemon import EXIT_LOST
from node.host.nodejs import EXIT_CANNOT_RUN, EXIT_NO_NODEJS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
GOLDEN = ROOT / "tests" / "cli" / "golden"

BLOCK = re.compile(r"^ *```(?:\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
PATH = re.compile(r"(?:api|docs|node|proto|requirements|scripts|tests)/[\w./*-]*\w/?|pyproject\.toml")


def text(name: str) -> str:
    return (DOCS / name).read_text()


def prose(page: str) -> str:
    return BLOCK.sub("", page)


def code(page: str) -> str:
    """All code in a page: blocks and text in backticks."""
    return "\n".join([*BLOCK.findall(page), *re.findall(r"`([^`\n]+)`", prose(page))])


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings."""
    kept = (re.sub(r"[^\w\s-]", "", heading.lower()) for heading in HEADING.findall(prose(page)))
    return {heading.strip().replace(" ", "-") for heading in kept}


def test_the_status_in_the_readme_is_what_cluster_prints() -> None:
    assert (GOLDEN / "status.txt").read_text().rstrip() + "\n" in BLOCK.findall((ROOT / "README.md").read_text())


# --- links and paths ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page.read_text())):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text()), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    for path in PATH.findall(re.sub(r"https?://\S+|(?<!\w)/(v1|api)/\S*|\.venv/\S*", "", code(page.read_text()))):
        assert any(ROOT.glob(path.rstrip("/"))), path


def test_every_decision_is_in_the_index() -> None:
    index = LINK.findall((DOCS / "adr" / "README.md").read_text())
    assert index == sorted(page.name for page in (DOCS / "adr").glob("0*.md"))


# --- lists ----------------------------------------------------------------------------------------------------------


def sections(title: str) -> set[str]:
    page = text("troubleshooting.md").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^### (\S+)$", page, re.MULTILINE))


def test_every_warning_has_a_section() -> None:
    assert sections("Warnings") == set(Code)


def test_every_exit_code_of_a_node_is_explained() -> None:
    told = re.search(r"^### exit codes of node\n\n(.+?)\n\n", text("reference.md"), re.MULTILINE | re.DOTALL)
    assert told
    usual = {0, 1, EXIT_USAGE}
    own = {EXIT_LOST, EXIT_NO_NODEJS, EXIT_CANNOT_RUN, EXIT_INTERRUPTED}
    assert set(map(int, re.findall(r"\b\d+\b", told[1]))) == usual | own


def test_every_error_has_a_section_with_its_status() -> None:
    page = text("troubleshooting.md")
    own = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.PippinError)]
    assert {each.code for each in own} <= sections("Errors")
    for error in own:
        again = ", with `Retry-After`" if error.retry_after else ""
        assert f"\n### {error.code}\n\n{error.status}{again}. " in page


def cells(section: str, page: str) -> set[str]:
    """Names in backticks in the first column of a section's tables."""
    whole = page.partition(f"\n{section}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\|([^|]+)\|", whole, re.MULTILINE)
    return {name.partition(".")[0] for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_parameter_is_in_its_table() -> None:
    """Those that are not followed as they are have tables that scripts/pages.py draws."""
    from api.anthropic.schema import MessagesRequest
    from api.chat.parameters import not_followed
    from api.chat.request import ChatRequest
    from api.chat.schema import CompletionRequest
    from api.ollama.schema import ChatBody, EmbedBody, GenerateBody, ModelOptions
    from api.openai.embeddings import EmbeddingRequest
    from api.responses.schema import ResponseRequest

    page = text("api.md")
    both = cells("## Parameters of both", page)
    of_ollama = cells("## Chat and generate", text("ollama.md")) | cells("## Embeddings", text("ollama.md"))
    for schema, told in (
        (ChatRequest, both | cells("## Chat", page)),
        (CompletionRequest, both | cells("## Legacy completions", page)),
        (EmbeddingRequest, cells("## Embeddings", page)),
        (ResponseRequest, cells("## Responses", page)),
        (MessagesRequest, cells("## Parameters", text("anthropic.md"))),
        *((each, of_ollama | {"stream"}) for each in (ChatBody, GenerateBody, ModelOptions, EmbedBody)),
    ):
        own = {"chat_template_kwargs", "output_format"} if schema is MessagesRequest else set()
        assert set(schema.model_fields) - set(not_followed(schema)) - told - own == set(), schema
    templates = ChatRequest.model_fields["adapter"].annotation.__args__[0].model_fields["templates"].annotation
    assert set(templates.model_fields) - cells("## Chat", page) == set()


def test_every_endpoint_is_in_its_table() -> None:
    from api.app import create_app

    page = text("api.md").partition("## Endpoints")[2].partition("\n## ")[0]
    named = set(re.findall(r"`((?:GET|POST|DELETE) /[^`]*)`", page))
    paths = {(route.method, route.resource.canonical) for route in create_app(MagicMock()).router.routes()}
    paths = {(method, "/page/…" if path.startswith("/page/") else path) for method, path in paths}
    assert {f"{method} {path}" for method, path in paths if method not in ("HEAD", "*")} == named | {
        each.replace("/v1", "", 1) for each in named if " /v1" in each
    }


def test_every_field_of_the_status_is_explained() -> None:
    page = text("status.md").partition("## The status as JSON")[2].partition("\n## ")[0]
    named = {part for name in re.findall(r"`([^`]+)`", page) for part in re.split(r"\[\]\.|\.", name)}

    def fields(value: object) -> Iterator[str]:
        if isinstance(value, dict):
            yield from value
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from fields(item)

    assert set(fields(json.loads((GOLDEN / "status.json").read_text()))) - named == set()


def test_every_metric_is_explained() -> None:
    names = re.findall(r'"(pippin_[a-z_]+)"', (ROOT / "api" / "http" / "metrics.py").read_text())
    assert names
    assert [name for name in names if f"`{name}" not in text("status.md")] == []


def test_the_architectures_are_those_that_run() -> None:
    from node.engine.architectures import REFUSED, SUPPORTED, UNPROVEN_ON_METAL  # here: MLX takes a while to import

    page = text("models.md").partition("## Architectures")[2].partition("\n## ")[0]
    (supported,) = BLOCK.findall(page)
    assert sorted(supported.split()) == sorted(SUPPORTED)
    assert dict(re.findall(r"^\| `(.+?)` \| (.+) \|$", page, re.MULTILINE)) == REFUSED
    unproven = page.partition("On Metal, ")[2].partition("are unproven")[0]
    assert set(re.findall(r"`(.+?)`", unproven)) == set(UNPROVEN_ON_METAL)
    assert f"{len(SUPPORTED)} mlx-lm architectures" in (ROOT / "CHANGELOG.md").read_text()


def test_a_gigabyte_is_what_the_pages_say() -> None:
    assert format_bytes(2**30) == "1.0 GB"
    assert "1 GB is 2³⁰ bytes" in text("models.md")


def test_sudo_finds_the_program_of_each_way_to_install() -> None:
    """After scripts/install there is no `cluster` on the PATH, so that `command -v` prints nothing."""
    told = 0
    for name in ("mac.md", "operations.md"):
        *lines, last = text(name).splitlines()
        assert "sudo cluster" not in text(name)
        for before, line in zip(lines, [*lines[1:], last], strict=True):
            for command in re.findall(r'sudo "\$\(command -v cluster\)" (service \w+)', line):
                assert f"sudo .venv/bin/cluster {command}" in before
                told += 1
    assert told == 4


def test_recipes_are_of_programs_whose_requests_are_tested_and_can_be_pasted() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    tested = set(re.findall(r'"([A-Z][\w ]+|n8n)"', (ROOT / "tests" / "api" / "test_programs.py").read_text()))
    programs = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert len(programs) == 6
    assert set(programs) <= tested
    blocks = re.findall(r"^( *)```(json|yaml)\n(.*?)^ *```$", page, re.MULTILINE | re.DOTALL)
    settings = [{"json": json.loads, "yaml": yaml.safe_load}[kind](dedent(text)) for _, kind, text in blocks]
    assert len(settings) == 3
    for address in re.findall(r"http://[\w.]+:\d+\S*?(?=[`\"\s])", page):
        assert address.partition(":52415")[2] in ("", "/v1", "/v1/models", "/v1/chat/completions"), address
