"""The documentation is correct: its blocks are run, checked or marked as output, and its commands,
options, settings and links exist. `scripts/docs` checks the links within the site.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from moothall.agents.runner import load
from moothall.api.identity import read_tokens
from moothall.authorization.rules import read_grants
from moothall.config import GrpcSettings
from moothall.config.settings import known_variables
from moothall.repositories.profile import parse_config_file
from moothall.settings import AllSettings, load_settings
from moothall.workflows.plan import PlanLimits, read_plan, read_yaml
from moothall.workspace.wasm import read_tools
from support.documented import PAGES, ROOT, Block, blocks, check_command, commands
from support.tools import CATALOGUE

RUN_ELSEWHERE = {
    "python": "tests/e2e/test_client.py",
    "sh run": "tests/e2e/test_documented.py",
    "sh": "test_every_command_exists",
    "mermaid": "tests/unit/graph/test_docs.py",
}
"""The tests that run or check the other blocks."""
OUTPUT = {"text"}
"""Output, and drawings."""
TESTED_WHOLE = {"operating.md", "api.md"}
"""Pages whose indented blocks have tests of their own: test_operating.py, test_pipelines.py."""


def _load_settings(text: str, folder: Path) -> None:
    secret = folder / "secret"
    secret.write_text("name=value\n", encoding="utf-8")
    file = folder / "config.toml"
    file.write_text(re.sub(r'(_file) = "[^"]+"', rf'\1 = "{secret}"', text), encoding="utf-8")
    load_settings(file)


def _read_project(text: str, _folder: Path) -> None:
    parse_config_file(text)


def _read_tokens(text: str, folder: Path) -> None:
    file = folder / "tokens.toml"
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)
    assert read_tokens(GrpcSettings(tokens_file=file), folder)


def _read_agent(text: str, folder: Path) -> None:
    file = folder / "agent.yaml"
    file.write_text(text, encoding="utf-8")
    loaded = load([file])
    assert loaded.specs
    assert not loaded.errors


def _read_workflow(text: str, _folder: Path) -> None:
    read_plan(read_yaml(text), PlanLimits(CATALOGUE, lambda _tool: "", 10, 4, 5))


def _read_roles(text: str, _folder: Path) -> None:
    read_grants(text, CATALOGUE.values())


def _read_module(text: str, folder: Path) -> None:
    (folder / "count.yaml").write_text(text, encoding="utf-8")
    (folder / "count.wasm").write_bytes(b"")
    assert read_tools(folder)


def _read_json(text: str, _folder: Path) -> None:
    json.loads(text)


READERS: dict[str, Callable[[str, Path], None]] = {
    "toml settings": _load_settings,
    "toml project": _read_project,
    "toml tokens": _read_tokens,
    "yaml agent": _read_agent,
    "yaml workflow": _read_workflow,
    "yaml roles": _read_roles,
    "yaml module": _read_module,
    "json": _read_json,
}


def test_every_block_is_run_checked_or_marked_as_output() -> None:
    known_kinds = {*READERS, *RUN_ELSEWHERE, *OUTPUT}
    assert [
        f"{block}: {block.kind or 'no kind'}"
        for block in blocks()
        if block.kind not in known_kinds and not block.kind.startswith("{")
    ] == []
    assert {block.page.name for block in blocks("python")} == {"client.md"}
    assert {block.page.name for block in blocks("mermaid")} == {"graph.md"}


def test_blocks_are_fenced_unless_a_test_of_their_own_reads_them() -> None:
    indented = {
        page.name
        for page in PAGES
        if re.search(r"(?m)^\n {4}[^\s|*-]", re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text()))
    }
    assert indented <= TESTED_WHOLE


@pytest.mark.parametrize("block", [b for kind in READERS for b in blocks(kind)], ids=str)
def test_a_file_in_the_docs_is_valid(block: Block, tmp_path: Path) -> None:
    READERS[block.kind](block.text, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_exists(page: Path) -> None:
    for command in commands(page):
        check_command(command)


@pytest.mark.parametrize(
    "command", ["moothall delibrate x", "moothall check --wrote", "moothall story add T --acc x"]
)
def test_a_command_that_does_not_exist_is_found(command: str) -> None:
    with pytest.raises(AssertionError):
        check_command(command)


def _reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "docs_reference", ROOT / "scripts/docs_reference.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_setting() -> None:
    reference = _reference()
    names = list(reference.setting_names())
    page = reference.settings_page(ROOT)  # raises if one has no description
    assert 150 < len(names) <= 200, "a new setting replaces one, or is a constant"
    assert [name for name in names if f"`{name}`" not in page] == []
    assert "Type: seconds, more than 0; default: `1800`" in page


def test_every_named_variable_is_a_setting() -> None:
    known_names = set(known_variables(AllSettings, "MOOTHALL_"))
    of_tests = {"MOOTHALL_REPOSITORIES_CACHE", "MOOTHALL_TEST_NEO4J_URL"}
    of_pipelines = {"MOOTHALL_TOKEN"}
    named = {
        variable
        for page in PAGES
        for variable in re.findall(r"MOOTHALL_[A-Z0-9_]*[A-Z0-9](?!_*…)\b", page.read_text())
    }
    assert named - known_names - of_tests - of_pipelines == set()


def test_every_error_code_has_advice() -> None:
    advised = set(
        re.findall(r"(?m)^### ([A-Z_]+)$", (ROOT / "docs/troubleshooting.md").read_text())
    )
    assert set(_reference().error_classes(ROOT)) | {"UNAUTHENTICATED", "STOPPING"} == advised


def test_the_reference_has_every_rpc_with_its_comment() -> None:
    page = _reference().protos_page(ROOT)
    protos = "\n".join(path.read_text() for path in (ROOT / "protos").rglob("*.proto"))
    names = re.findall(r"(?m)^ +rpc (\w+)\(", protos)
    assert len(names) > 50
    assert [name for name in names if not re.search(rf"(?m)^`{name}\(.*\n: \S", page)] == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent == ROOT], ids=lambda page: page.name
)
def test_links_of_root_pages_lead_to_existing_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        file = ROOT / name
        assert file.exists(), target
        if anchor:
            assert anchor in _anchors(file), target


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
