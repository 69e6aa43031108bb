"""The set-up commands of a devcontainer.json, which count only if nothing else says them."""

from __future__ import annotations

import json

import pytest

from moothall.domain.repository import SetupStep
from moothall.repositories.detect import detect, find_manifests

MAKEFILE = {"Makefile": "test:\n\t./run-tests\n"}


def steps(text: str, path: str = ".devcontainer/devcontainer.json") -> tuple[SetupStep, ...]:
    files = {**MAKEFILE, path: text}
    return detect(files, files).steps


def test_commands_of_every_form_in_their_order() -> None:
    text = """
    // The image is not used. /* nor this */
    {
        "image": "mcr.microsoft.com/devcontainers/cpp", /* "postCreateCommand": "no" */
        "postCreateCommand": {"deps": "make deps && make gen", "tool": ["./tool", "install"],},
        "onCreateCommand": "echo \\"// https://example.org\\", ,}",
        "updateContentCommand": ["make", "-C", "${containerWorkspaceFolder}/lib"],
        "postStartCommand": "make serve",
    }
    """
    assert [step.argv for step in steps(text)] == [
        ("sh", "-c", 'echo "// https://example.org", ,}'),
        ("make", "-C", "./lib"),
        ("sh", "-c", "make deps && make gen"),
        ("./tool", "install"),
    ]
    assert all(step.optional for step in steps(text))


def test_the_file_is_one_that_set_up_depends_on() -> None:
    text = json.dumps({"postCreateCommand": "make deps"})
    files = {**MAKEFILE, ".devcontainer.json": text, "lib/.devcontainer.json": text}
    found = detect(files, files)
    assert found.reads == (".devcontainer.json",)
    assert found.steps == (SetupStep(("sh", "-c", "make deps"), optional=True),)
    assert found.checks == {"tests": ("make", "test")}
    assert set(find_manifests(files)) == {"Makefile", ".devcontainer.json"}


def test_what_the_project_itself_says_comes_first() -> None:
    files = {
        "go.mod": "module example.org/m\n\ngo 1.22\n",
        "a_test.go": "package m\n",
        ".devcontainer.json": json.dumps({"postCreateCommand": "make deps"}),
    }
    found = detect(files, files)
    assert found.steps
    assert not any("make deps" in step.argv for step in found.steps)
    assert ".devcontainer.json" not in found.reads


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "[" * 100_000,
        json.dumps({"postCreateCommand": 7, "onCreateCommand": ["", 3], "x": None}),
        json.dumps({"postCreateCommand": {"a": {"b": "make"}}}),
        json.dumps({"postCreateCommand": "  "}),
        json.dumps({"postCreateCommand": "cp ${localEnv:HOME}/.key ."}),
        json.dumps({"postCreateCommand": ["cp", "${localWorkspaceFolder}/x", "."]}),
    ],
)
def test_a_file_that_says_nothing_usable_is_no_error(text: str) -> None:
    assert steps(text) == ()


@pytest.mark.parametrize("text", ['"' + '\\"' * 400_000, "/* " * 300_000, '"' * 900_001])
def test_a_hostile_file_is_read_at_once(text: str) -> None:
    assert steps(text) == ()


def test_files_that_a_command_names_are_inputs_of_the_set_up() -> None:
    command = "bash .devcontainer/setup.sh && pip install -r ./requirements/dev.txt"
    files = {
        **MAKEFILE,
        ".devcontainer/devcontainer.json": json.dumps({"postCreateCommand": command}),
        ".devcontainer/setup.sh": "true",
        "requirements/dev.txt": "six",
        "notes.txt": "",
    }
    assert {".devcontainer/setup.sh", "requirements/dev.txt"} <= set(detect(files, files).reads)
    assert "notes.txt" not in detect(files, files).reads
