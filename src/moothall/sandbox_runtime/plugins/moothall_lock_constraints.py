"""Converts a project's lock file to constraints for pip: `moothall_lock_constraints.py LOCK OUT`.

It runs during set-up under Python 3.7 and later, so it reads the few lines that it needs with
patterns: uv.lock, poetry.lock, pdm.lock and pylock.toml are written by tools, Pipfile.lock is JSON.
Packages that do not come from an index (a path, a repository), or that are locked in several
versions, are left to pip.
"""

from __future__ import annotations

import json
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGE = re.compile(r"^\[\[packages?\]\]\s*$", re.MULTILINE)
_FIELD = {
    name: re.compile(rf'^{name}\s*=\s*"([A-Za-z0-9._+!-]+)"\s*$', re.MULTILINE)
    for name in ("name", "version")
}
_NOT_FROM_INDEX = re.compile(
    r"^source\s*=\s*\{(?!\s*registry)|^type\s*=\s*\"(?:git|url|directory|file)\"|^(?:git|path|editable|directory|vcs|archive)\s*="
    r"|(?<!\"legacy\"\n)^url\s*=",
    re.MULTILINE,
)


def locked_versions(text: str) -> dict[str, str]:
    """Return the version of each package that a lock file pins to one version."""
    versions: dict[str, str] = {}
    ambiguous = set()
    for name, version in _pipenv(text) if text.lstrip()[:1] == "{" else _tables(text):
        if versions.setdefault(name, version) != version:
            ambiguous.add(name)
    return {name: version for name, version in versions.items() if name not in ambiguous}


def _tables(text: str) -> Iterator[tuple[str, str]]:
    for package in _PACKAGE.split(text)[1:]:
        head = re.split(r"^\[(?!package\.source\])", package, maxsplit=1, flags=re.MULTILINE)[0]
        name, version = (field.search(head) for field in _FIELD.values())
        if name and version and not _NOT_FROM_INDEX.search(head):
            yield re.sub(r"[-_.]+", "-", name[1]).lower(), version[1]


def _pipenv(text: str) -> Iterator[tuple[str, str]]:
    lock = json.loads(text)
    for group in ("default", "develop"):
        for name, entry in lock.get(group, {}).items():
            pinned = re.match(r"==([A-Za-z0-9._+!-]+)$", entry.get("version") or "")
            if pinned and "git" not in entry:
                yield re.sub(r"[-_.]+", "-", name).lower(), pinned[1]


def main() -> None:
    """Read the lock file and write the constraints."""
    lock, out = sys.argv[1:]
    with open(lock, encoding="utf-8") as file:
        versions = locked_versions(file.read())
    with open(out, "w", encoding="utf-8") as file:
        file.writelines(f"{name}=={version}\n" for name, version in sorted(versions.items()))


if __name__ == "__main__":
    main()
