from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from moothall.errors import ConfigurationError
from moothall.tools.spec import Danger
from moothall.workspace.wasm import read_tools

COUNT = """
summary: count the lines of a file
arguments:
  path: {type: path}
  most: {type: integer, default: 10, minimum: 1, maximum: 100}
  exact: {type: boolean, default: false}
seconds: 5
"""


def write_description(folder: Path, text: str, name: str = "count") -> Path:
    (folder / f"{name}.wasm").write_bytes(b"\0asm")
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder


def test_a_module_and_its_description_become_a_tool(tmp_path: Path) -> None:
    (tool,) = read_tools(write_description(tmp_path, COUNT))
    spec = tool.spec
    assert (spec.name, spec.danger, spec.paths, spec.timeout_seconds) == (
        "wasm.count",
        Danger.READ,
        ("path",),
        5,
    )
    assert spec.requirements.file_system == "read"
    assert spec.signature == "wasm.count(path, most?, exact?)"
    assert spec.schema(None)["properties"]["most"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 100,
    }
    assert spec.arguments.model_validate({"path": "a"}).model_dump() == {
        "path": "a",
        "most": 10,
        "exact": False,
    }
    for invalid_arguments in (
        {},
        {"path": ""},
        {"path": "a", "most": 0},
        {"path": "a", "most": "1"},
        {"path": "a", "other": 1},
    ):
        with pytest.raises(ValidationError):
            spec.arguments.model_validate(invalid_arguments)


def test_without_a_folder_there_are_no_tools() -> None:
    assert read_tools(None) == ()
    with pytest.raises(ConfigurationError, match="is not a folder"):
        read_tools(Path("/nonexistent"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("Count", COUNT, "not a valid tool name"),
        ("count", "summary: it counts\nargument: {}", "argument: Extra inputs"),
        ("count", "arguments: {}", "summary: Field required"),
        ("count", COUNT.replace("type: integer", "type: text"), r"arguments\.most\.type"),
        (
            "count",
            COUNT.replace("default: false", "default: 1"),
            "the default of exact is not of the type boolean",
        ),
        (
            "count",
            COUNT.replace("default: 10", "default: true"),
            "the default of most is not of the type integer",
        ),
        ("count", COUNT.replace("seconds: 5", "seconds: 5000"), "seconds"),
        ("count", "[1, 2", "cannot be read"),
        ("count", "- 1", "it: Input should be"),
    ],
)
def test_errors_in_a_description_are_named(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        read_tools(write_description(tmp_path, text, name))
    assert f"{name}.yaml" in raised.value.message


def test_a_description_needs_its_module(tmp_path: Path) -> None:
    write_description(tmp_path, COUNT)
    (tmp_path / "count.wasm").unlink()
    with pytest.raises(ConfigurationError, match=r"its module count\.wasm is missing"):
        read_tools(tmp_path)
