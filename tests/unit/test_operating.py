"""Each command of docs/operating.md names existing files and objects; test_documentation.py checks
our own commands.
"""

from __future__ import annotations

import functools
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
KNOWN = ("kubectl", "helm", "scripts/")
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
def named_objects() -> set[tuple[str, str]]:
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
def test_named_files_and_objects_exist(command: str) -> None:
    words = shlex.split(command)
    for word in words:
        if word.startswith(("deploy/k8s/", "deploy/helm/", "scripts/")):
            assert (ROOT / word).exists(), command
    assert set(objects(words)) <= named_objects(), command
    for flag, value in itertools.pairwise(words):
        if flag in {"-n", "--namespace"}:
            assert ("namespace", value) in named_objects(), command


def test_every_referenced_secret_is_in_the_table() -> None:
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
