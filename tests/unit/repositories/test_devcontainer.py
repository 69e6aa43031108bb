"""The set-up commands of a devcontainer.json or a copilot-setup-steps.yml, which count only if
nothing else says them.
"""

from __future__ import annotations

import json

import pytest

from moothall.domain.repository import SetupStep
from moothall.repositories.detect import detect, find_manifests

MAKEFILE = {"Makefile": "test:\n\t./run-tests\n"}


def steps(text: str, path: str = ".devcontainer/devcontainer.json") -> tuple[SetupStep, ...]:
    files = {**MAKEFILE, path: text}
    return detect(files, files).steps


def test_commands_of_every_form_are_read_in_order() -> None:
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


def test_the_devcontainer_file_is_an_input_of_set_up() -> None:
    text = json.dumps({"postCreateCommand": "make deps"})
    files = {**MAKEFILE, ".devcontainer.json": text, "lib/.devcontainer.json": text}
    detection = detect(files, files)
    assert detection.reads == (".devcontainer.json",)
    assert detection.steps == (SetupStep(("sh", "-c", "make deps"), optional=True),)
    assert detection.checks == {"tests": ("make", "test")}
    assert set(find_manifests(files)) == {"Makefile", ".devcontainer.json"}


def test_the_projects_own_declarations_take_precedence() -> None:
    files = {
        "go.mod": "module example.org/m\n\ngo 1.22\n",
        "a_test.go": "package m\n",
        ".devcontainer.json": json.dumps({"postCreateCommand": "make deps"}),
    }
    detection = detect(files, files)
    assert detection.steps
    assert not any("make deps" in step.argv for step in detection.steps)
    assert ".devcontainer.json" not in detection.reads


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
def test_a_file_without_usable_commands_is_not_an_error(text: str) -> None:
    assert steps(text) == ()


@pytest.mark.parametrize("text", ['"' + '\\"' * 400_000, "/* " * 300_000, '"' * 900_001])
def test_a_hostile_file_is_read_quickly(text: str) -> None:
    assert steps(text) == ()


def test_files_named_by_a_command_are_inputs_of_the_set_up() -> None:
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


WORKFLOW = ".github/workflows/copilot-setup-steps.yml"


def test_the_agent_workflows_commands_take_precedence_over_a_devcontainer() -> None:
    text = """
on: workflow_dispatch
jobs:
  other:
    steps:
      - run: make wrong
  copilot-setup-steps:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v5
      - name: Install
        run: |
          make deps
          ./scripts/generate.sh
        working-directory: ./lib/
        env: {LEVEL: 1, NAME: a b}
      - {run: make tool, shell: bash}
      - {run: "make ${{ inputs.target }}"}
      - {run: make token, env: {TOKEN: "${{ secrets.TOKEN }}"}}
      - {run: make windows, shell: pwsh}
      - {run: make sometimes, if: "always()"}
      - {run: make outside, working-directory: ../x}
      - {run: make missing, working-directory: nowhere}
      - {run: make rooted, working-directory: /etc}
      - {run: make injected, env: {"-C": /}}
      - {run: [make, list]}
"""
    files = {
        **MAKEFILE,
        WORKFLOW: text,
        "scripts/generate.sh": "",
        "lib/Makefile": "",
        ".devcontainer.json": json.dumps({"postCreateCommand": "make other"}),
    }
    detection = detect(files, files)
    assert detection.steps == (
        SetupStep(
            (
                *("env", "LEVEL=1", "NAME=a b", "bash", "-e", "-c"),
                "make deps\n./scripts/generate.sh\n",
            ),
            "lib",
            optional=True,
        ),
        SetupStep(("bash", "-eo", "pipefail", "-c", "make tool"), optional=True),
    )
    assert {WORKFLOW, "scripts/generate.sh"} <= set(detection.reads)
    assert WORKFLOW in find_manifests(files)


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "[" * 31_000,
        "jobs: [copilot-setup-steps]",
        "jobs: {copilot-setup-steps: {steps: make}}",
        "jobs: {copilot-setup-steps: {steps: [make, [run], {run: ' '}, {run: 7, if: x}]}}",
        "a: &a [x]\njobs: {copilot-setup-steps: {steps: [{run: make, with: *a}]}}",
        "jobs: {copilot-setup-steps: {steps: [{run: make}]}}" + "\n" * 40_000,
        "!!python/object/apply:os.system [id]",
    ],
)
def test_an_unusable_workflow_has_no_commands(text: str) -> None:
    assert steps(text, WORKFLOW) == ()
