from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from moothall.app.gateway_rules import catalogue_of
from moothall.authorization.rules import grant_for
from moothall.config import WorkspaceSettings
from moothall.domain.ids import ROLES
from moothall.domain.tool import Grant
from moothall.settings import AllSettings, load_settings
from moothall.tools.catalogue import FILE_CHANGING_TOOLS, ToolSpec, describe, list_tools
from moothall.tools.schemas import arguments_digest, canonical
from support.tools import CATALOGUE

ALL = Grant(tools=("*",))
SPECS = tuple(CATALOGUE.values())
# What only the model checks, and why no schema does: these end up as words of a command line.
BEYOND_THE_SCHEMA = {
    "git.diff",
    "git.checkout",
    "git.branch",
    "git.clone",
    "git.push",
    "tests.make",
    "db.redis",
    "browser.run",
    "docker.build",
    "docker.run",
    "docker.exec",
    "docker.logs",
    "docker.stop",
    "docker.rm",
    "code.python",
    "code.node",
    "code.shell",
    "web.search",
    *(f"http.{verb}" for verb in ("get", "head", "post", "put", "patch", "delete", "upload")),
}


def fits(shape: dict[str, Any], arguments: dict[str, Any]) -> bool:
    jsonschema = pytest.importorskip("jsonschema")  # a dependency of Ray
    jsonschema.Draft202012Validator.check_schema(shape)
    return bool(jsonschema.Draft202012Validator(shape).is_valid(arguments))


def parts_of(shape: Any) -> list[dict[str, Any]]:
    inner = shape.values() if isinstance(shape, dict) else shape if isinstance(shape, list) else ()
    return [
        *([shape] if isinstance(shape, dict) else []),
        *(part for value in inner for part in parts_of(value)),
    ]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_schemas_are_flat_closed_and_bounded(spec: ToolSpec) -> None:
    shape = spec.schema()
    assert shape["additionalProperties"] is False
    assert set(shape) == {"type", "properties", "required", "additionalProperties"}
    for part in parts_of(shape):
        assert not {"$ref", "$defs", "anyOf", "title", "default"} & set(part)
        # What grammar engines such as xgrammar refuse; an argument may have such a name.
        refused = {
            "pattern",
            "format",
            "maxProperties",
            "minProperties",
            "patternProperties",
            "propertyNames",
        }
        assert "type" not in part or not refused & set(part)
        if part.get("type") == "string" and "enum" not in part:
            assert part["maxLength"] <= 8000
        if part.get("type") == "array":
            assert part["maxItems"] <= 100
        if part.get("type") == "integer":
            assert part["minimum"] <= part["maximum"]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_path_arguments_exist_in_the_model(spec: ToolSpec) -> None:
    assert set(spec.writes) <= set(spec.paths) <= set(spec.arguments.model_fields)
    assert {"path", "paths", "other", "glob"} & set(spec.arguments.model_fields) <= set(spec.paths)
    assert spec.outside is (
        spec.name in {"git.clone", "git.pull", "git.push"}
        or spec.category in {"http", "web", "browser", "db", "docker"}
    )
    assert spec.name.startswith(f"{spec.category}.")


VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-5, 30_000)
    | st.text(max_size=20)
    | st.sampled_from(["a.py", "main", "HEAD~1", "x" * 201, "x" * 501, "--all"])
    | st.lists(st.text(max_size=5) | st.integers(), max_size=3)
)


@given(st.sampled_from(SPECS), st.data())
def test_schema_and_model_agree(spec: ToolSpec, data: st.DataObject) -> None:
    names = st.sampled_from([*spec.arguments.model_fields, "extra"])
    required = data.draw(st.booleans())
    arguments: dict[str, Any] = data.draw(st.dictionaries(names, VALUES, max_size=5))
    if required:
        arguments = {
            name: "a.py" for name in spec.schema()["required"] if name != "paths"
        } | arguments
    by_schema = fits(spec.schema(None), arguments)
    try:
        spec.arguments.model_validate(arguments)
        by_model = True
    except ValidationError as error:
        by_model = False
        only_words = all(item["type"] == "value_error" for item in error.errors())
        if only_words:
            assert spec.name in BEYOND_THE_SCHEMA
            return
    assert by_schema is by_model


def test_arguments_valid_for_the_short_schema_are_valid_for_the_model() -> None:
    spec = CATALOGUE["files.write"]
    assert fits(spec.schema(), {"path": "a", "content": "x" * 8000})
    assert not fits(spec.schema(), {"path": "a", "content": "x" * 8001})
    spec.arguments.model_validate({"path": "a", "content": "x" * 8001})
    assert spec.schema(100)["properties"]["content"]["maxLength"] == 100


def test_each_caller_gets_its_own_copy_of_a_schema() -> None:
    spec = CATALOGUE["files.read"]
    spec.schema()["properties"].clear()
    assert spec.schema()["properties"]


def test_coding_roles_may_run_commands_if_the_context_window_allows() -> None:
    has_shell = {
        role: "code.shell" in {spec.name for spec in list_tools(grant_for(role))} for role in ROLES
    }
    assert {role for role in has_shell if has_shell[role]} == {"dev", "qa", "devops", "data"}
    assert "code.shell" not in {spec.name for spec in list_tools(grant_for("dev"), core=True)}
    assert not any(
        spec.name in {"code.python", "code.node"}
        for role in ROLES
        for spec in list_tools(grant_for(role))
    )


def test_the_catalogue_contains_every_tool_of_the_wire_in_order() -> None:
    names = (
        "files.read files.write files.append files.edit files.define files.list files.search "
        "files.delete files.mkdir files.info files.diff git.status git.diff git.log git.add "
        "git.commit git.branch git.checkout git.clone git.pull git.push tests.pytest tests.npm "
        "tests.go tests.cargo tests.make code.python code.node code.shell system.info "
        "system.processes http.get http.head http.post http.put http.patch http.delete "
        "http.download http.upload web.fetch web.search browser.run db.postgres db.redis db.neo4j "
        "docker.build docker.run docker.exec docker.ps docker.logs docker.stop docker.rm"
    )
    assert list(CATALOGUE) == names.split()


def test_file_changing_tools_are_those_that_write_and_store() -> None:
    names = "write append edit define delete mkdir store"
    assert {f"files.{name}" for name in names.split()} == FILE_CHANGING_TOOLS


def test_the_tool_list_is_stable_and_short_for_a_small_model() -> None:
    grant = grant_for("dev")
    assert list_tools(grant) == list_tools(Grant(tools=tuple(reversed(grant.tools))))
    core = describe(list_tools(grant, core=True))
    assert core.splitlines()[2] == "files.append(path, content)  add to the end of a file"
    assert len(core) < 600  # at three characters a token, 200 of the 900 tokens of a small prompt
    assert (
        hashlib.sha256(describe(list_tools(ALL, catalogue=CATALOGUE)).encode()).hexdigest()
        == hashlib.sha256(
            "\n".join(f"{spec.signature}  {spec.summary}" for spec in SPECS).encode()
        ).hexdigest()
    )


@pytest.mark.parametrize("ref", ["", "main", "HEAD~1", "v1.2", "HEAD@{1}", "origin/main"])
def test_valid_refs_are_accepted(ref: str) -> None:
    CATALOGUE["git.diff"].arguments.model_validate({"ref": ref})


@pytest.mark.parametrize("ref", ["-x", "--output=/tmp/x", "a..b", "a b", "a\n", "a:b", ":/fix"])
def test_an_invalid_ref_is_refused(ref: str) -> None:
    with pytest.raises(ValidationError, match="is not a git ref"):
        CATALOGUE["git.diff"].arguments.model_validate({"ref": ref})


@pytest.mark.parametrize(
    "name", ["a..b", "a.lock", "a/", "/a", "-x", "a//b", "a/.b", "a@{1}", "a b"]
)
def test_an_invalid_branch_name_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="is not a branch name"):
        CATALOGUE["git.branch"].arguments.model_validate({"name": name})


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=5))
def test_the_digest_ignores_the_order_of_keys(arguments: dict[str, Any]) -> None:
    turned = dict(reversed(arguments.items()))
    assert arguments_digest(arguments) == arguments_digest(turned)
    assert json.loads(canonical(arguments)) == arguments


def test_arguments_that_are_not_json_have_a_digest_too() -> None:
    assert len(arguments_digest({"a": object()})) == 64
    assert arguments_digest({"a": 1}) != arguments_digest({"a": 2})


def test_the_time_limit_of_shell_commands_is_configurable() -> None:
    usual = catalogue_of(AllSettings())["code.shell"]
    assert [usual.call_seconds({"timeout_seconds": seconds}) for seconds in (0, 30, 600, 9000)] == [
        120,
        30,
        600,
        600,
    ]
    short = catalogue_of(load_settings(workspace=WorkspaceSettings(check_seconds=60)))["code.shell"]
    assert [short.call_seconds({"timeout_seconds": seconds}) for seconds in (0, 30, 600)] == [
        60,
        30,
        60,
    ]
    assert (
        CATALOGUE["files.read"].call_seconds({"timeout_seconds": 9000})
        == CATALOGUE["files.read"].timeout_seconds
    )
