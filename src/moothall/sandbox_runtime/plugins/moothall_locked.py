"""Writes what a project's lock file fixes as constraints for pip: `moothall_locked.py LOCK OUT`.

Runs under Python 3.7 and on, in a set-up, so it reads the few lines that it needs by their shape:
uv.lock, poetry.lock, pdm.lock and pylock.toml are written by tools, Pipfile.lock is JSON. What
comes from no index (a path, a repository), and what the lock has in several versions, is left to
pip.
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
_ELSEWHERE = re.compile(
    r"^source\s*=\s*\{(?!\s*registry)|^type\s*=\s*\"(?:git|url|directory|file)\"|^(?:git|path|editable|directory|vcs|archive)\s*="
    r"|(?<!\"legacy\"\n)^url\s*=",
    re.MULTILINE,
)


def locked_versions(text: str) -> dict[str, str]:
    """Return the version of each package that a lock file fixes to one."""
    found: dict[str, str] = {}
    several = set()
    for name, version in _pipenv(text) if text.lstrip()[:1] == "{" else _tables(text):
        if found.setdefault(name, version) != version:
            several.add(name)
    return {name: version for name, version in found.items() if name not in several}


def _tables(text: str) -> Iterator[tuple[str, str]]:
    for package in _PACKAGE.split(text)[1:]:
        head = re.split(r"^\[(?!package\.source\])", package, maxsplit=1, flags=re.MULTILINE)[0]
        name, version = (field.search(head) for field in _FIELD.values())
        if name and version and not _ELSEWHERE.search(head):
            yield re.sub(r"[-_.]+", "-", name[1]).lower(), version[1]


def _pipenv(text: str) -> Iterator[tuple[str, str]]:
    lock = json.loads(text)
    for group in ("default", "develop"):
        for name, entry in lock.get(group, {}).items():
            fixed = re.match(r"==([A-Za-z0-9._+!-]+)$", entry.get("version") or "")
            if fixed and "git" not in entry:
                yield re.sub(r"[-_.]+", "-", name).lower(), fixed[1]


def main() -> None:
    """Read the one file and write the other."""
    lock, out = sys.argv[1:]
    with open(lock, encoding="utf-8") as file:
        versions = locked_versions(file.read())
    with open(out, "w", encoding="utf-8") as file:
        file.writelines(f"{name}=={version}\n" for name, version in sorted(versions.items()))


if __name__ == "__main__":
    main()
