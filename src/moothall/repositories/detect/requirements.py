"""What is and makes a requirement: groups of PEP 735 and poetry's constraints as words for pip.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from moothall.errors import RepositoryError
from moothall.repositories.detect.project import strings, table

TEST_GROUPS = ("test", "tests", "testing", "unittest", "unit", "ci")
DEV_GROUPS = ("dev", "develop", "development", "all")
OTHER_PURPOSE = re.compile(
    r"doc|lint|typ(?:e|ing)|mypy|style|format|release|publish|deploy|build|bench|profil|notebook|example|commit|cov|security|audit|min(?:imal)?\b",
    re.IGNORECASE,
)
"""In the name of a group, session or environment: it is for something else than tests."""
RUNS_TESTS = re.compile(r"\b(?:pytest|unittest)\b")
REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(?:[\[(<>=!~;@ ].*)?", re.DOTALL)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def requirement(item: object, where: str) -> str:
    """Return what pip takes for a requirement. Raises `RepositoryError`."""
    if not isinstance(item, str) or not REQUIREMENT.fullmatch(item):
        raise RepositoryError(
            f"{where}: {str(item)[:100]!r} is not a requirement such as 'attrs>=25'"
        )
    return item


def expand_group(standard: Mapping[str, Any], name: str, above: tuple[str, ...]) -> list[str]:
    """Return a group of PEP 735 with those that it includes, however it spells their names."""
    known = {re.sub(r"[-_.]+", "-", key).lower(): items for key, items in standard.items()}
    items = known.get(re.sub(r"[-_.]+", "-", name).lower(), [])
    if not isinstance(items, list) or name in above:
        return []
    found: list[str] = []
    for item in items:
        other = item.get("include-group") if isinstance(item, dict) else None
        found += (
            expand_group(standard, other, (*above, name)) if isinstance(other, str) else [str(item)]
        )
    return found


def own_extras(names: Sequence[str]) -> list[str]:
    """Return the words that install a project with these extras of its own."""
    kept = [name for name in names if NAME.fullmatch(name)]
    return ["-e", f".[{','.join(kept)}]"] if kept else []


def poetry(dependencies: Mapping[str, Any]) -> list[str]:
    """Translate poetry's dependencies to requirements; one that is neither a version nor a URL is
    left out.
    """
    found = []
    for name, said in dependencies.items():
        if name == "python" or not NAME.fullmatch(name):
            continue
        for one in said if isinstance(said, list) else [said]:
            spec = {"version": one} if isinstance(one, str) else table(one)
            if spec.get("optional"):
                continue
            if isinstance(spec.get("path"), str):
                found += ["-e", f"./{spec['path']}"]
                continue
            named = (
                f"{name}[{','.join(strings(spec.get('extras')))}]" if spec.get("extras") else name
            )
            if isinstance(spec.get("git"), str):
                ref = next(
                    (f"@{spec[key]}" for key in ("rev", "tag", "branch") if spec.get(key)), ""
                )
                found.append(f"{named} @ git+{spec['git']}{ref}")
                continue
            markers = [f"({spec['markers']})"] if spec.get("markers") else []
            python = versions(spec["python"]) if isinstance(spec.get("python"), str) else ""
            markers += [
                f"python_full_version {_operator(part)}" for part in python.split(",") if part
            ]
            found.append(
                f"{named}{versions(str(spec.get('version', '*')))}"
                + (f" ; {' and '.join(markers)}" if markers else "")
            )
    return [
        item
        for item in found
        if item == "-e" or item.startswith("./") or REQUIREMENT.fullmatch(item)
    ]


def _operator(part: str) -> str:
    match = re.match(r"([<>=!~]+)\s*(.+)", part)
    return f"{match[1]} '{match[2]}'" if match else f"== '{part}'"


def versions(text: str) -> str:
    """Return poetry's version constraint as a specifier of PEP 440 ('^1.2' is '>=1.2,<2.0'); of
    alternatives the last one.
    """
    parts = [
        part.strip()
        for part in re.split(r"\|\|?", text)[-1].replace(" ", ",").split(",")
        if part.strip()
    ]
    found = []
    for part in parts:
        numbers = [int(number) for number in re.findall(r"\d+", part.partition("-")[0])[:3]]
        if part.startswith("^") and numbers:
            at = next((at for at, number in enumerate(numbers) if number), len(numbers) - 1)
            found.append(f">={part[1:]},<{'.'.join(map(str, [*numbers[:at], numbers[at] + 1]))}")
        elif part.startswith("~") and not part.startswith("~=") and numbers:
            upper = [numbers[0] + 1] if len(numbers) == 1 else [numbers[0], numbers[1] + 1]
            found.append(f">={part[1:]},<{'.'.join(map(str, upper))}")
        elif part[0].isdigit():
            found.append(f"=={part}")
        elif part != "*":
            found.append(part)
    return ",".join(found)
