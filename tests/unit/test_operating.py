"""Each command of docs/operating.md names existing commands, options, files and objects."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from moothall.cli import main

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
KNOWN = ("moothall", "kubectl", "helm", "scripts/")
MANIFESTS = [*(ROOT / "deploy/k8s").rglob("*.yaml")]
MADE_BY_OTHERS = {"hosts"}  # KubeRay's Secret


def commands() -> list[str]:
    """Yield commands on lines of their own and within sentences."""
    matches = re.findall(r"^    (\S.*)$|`([^`\n]+)`", TEXT, re.MULTILINE)
    spans = (line or span for line, span in matches)
    command_lines = [
        item
        for item in spans
        if item.startswith(KNOWN) and (" " in item or item.startswith("scripts/"))
    ]
    return sorted({part.strip() for item in command_lines for part in item.split(" | ")})


@functools.cache
def named() -> set[tuple[str, str]]:
    """Return kind and name of every object in the manifests."""
    names = set()
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if (
                isinstance(document, dict)
                and "metadata" in document
                and "name" in document["metadata"]
            ):
                names.add((document["kind"].lower(), document["metadata"]["name"]))
    return names


@pytest.mark.parametrize(
    "command",
    [
        command_line
        for command_line in commands()
        if command_line.startswith("moothall") or " -- moothall " in command_line
    ],
)
def test_ours_are_commands_with_their_options(command: str) -> None:
    words = shlex.split(command)
    words = words[words.index("--") + 1 :] if "--" in words else words
    group: click.Command = main
    context = click.Context(main)
    rest = words[1:]
    while isinstance(group, click.Group) and rest:
        subcommand = group.get_command(context, rest[0])
        assert subcommand is not None, f"{command}: no command {rest[0]}"
        group, rest = subcommand, rest[1:]
    options = {option for parameter in group.params for option in parameter.opts} | {"--help"}
    assert {word for word in rest if word.startswith("-")} <= options, command


def objects(words: list[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        if match := re.fullmatch(r"(deploy|deployment|statefulset)/([\w-]+)", word):
            yield match[1].replace("deployment", "deploy").replace("deploy", "deployment"), match[2]


@pytest.mark.parametrize(
    "command",
    [
        command_line
        for command_line in commands()
        if command_line.startswith(("kubectl", "scripts/"))
    ],
)
def test_files_and_objects_are_there(command: str) -> None:
    words = shlex.split(command)
    for word in words:
        if word.startswith(("deploy/k8s/", "deploy/helm/", "scripts/")):
            assert (ROOT / word).exists(), command
    assert set(objects(words)) <= named(), command
    for flag, value in itertools.pairwise(words):
        if flag in {"-n", "--namespace"}:
            assert ("namespace", value) in named(), command


def test_every_secret_that_is_referred_to_is_in_the_table() -> None:
    text = "\n".join(
        path.read_text(encoding="utf-8") for path in MANIFESTS if "examples" not in path.parts
    )
    referred = set(
        re.findall(
            r"secretName: ([\w-]+)|secretRef: \{name: ([\w-]+)|secretKeyRef: \{name: ([\w-]+)", text
        )
    )
    names = {name for group in referred for name in group if name}
    table = TEXT[TEXT.index("| Secret of namespace") :].split("\n\n", 1)[0]
    assert names == set(
        re.findall(
            r"`([a-z0-9-]+)`", "\n".join(row.split("|")[1] for row in table.splitlines()[2:])
        )
    )
    assert names >= MADE_BY_OTHERS
