"""The instructions for agents in a repository: AGENTS.md files, of which the closest to a changed
file takes precedence, and skills (folders with a SKILL.md).

They say how to work and do not change the task. Their text is foreign. Only texts of the base
commit are read, so a path cannot lead out of the repository.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from moothall.domain.text import fence, parse_foreign_yaml
from moothall.errors import NotFound

Read = Callable[[str], Awaitable[str]]

_NAMES = ("AGENTS.md", "CLAUDE.md")
"""The names of a guide, the preferred one first."""
_SKILL = re.compile(r"(?:^|/)skills/(?P<folder>[^/]+)/SKILL\.md$")
_NOT_OWN = re.compile(
    r"(?:^|/)(?:node_modules|vendor|third[-_]?party|external|testdata|fixtures?)/", re.IGNORECASE
)
_SKILL_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_MAX_NESTED, _MAX_SKILLS, _MAX_NEAR = 16, 16, 2
_ROOT_CHARS, _NEAR_CHARS, _POINTER_CHARS = 2_400, 1_200, 200
_PATH_CHARS, _NAME_CHARS, _DESCRIPTION_CHARS, _HEAD_CHARS = 160, 64, 240, 4_000


@dataclass(frozen=True, slots=True)
class Guide:
    """A guide for agents. `sha256` is that of its text, of which at most 65,536 characters are
    read.
    """

    path: str
    text: str
    sha256: str

    @property
    def folder(self) -> str:
        """Its folder, '' for the root."""
        return self.path.rpartition("/")[0]

    def cut(self, max_chars: int) -> str:
        """Return the first lines of the text that fit."""
        if len(self.text) <= max_chars:
            return self.text
        return f"{self.text[:max_chars].rpartition(chr(10))[0]}\n[… the rest is in {self.path}]"


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill. `sha256` is that of its SKILL.md."""

    path: str
    name: str
    description: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Guides:
    """The guides of a repository.

    Attributes:
        root: the guide of the root, None if there is none.
        closest: the guides closest to the files that the task names, without that of the root.
        nested: all guides of folders that are listed.
    """

    root: Guide | None = None
    closest: tuple[Guide, ...] = ()
    nested: tuple[Guide, ...] = ()
    skills: tuple[Skill, ...] = ()

    @property
    def digests(self) -> Mapping[str, str]:
        """The sha256 of each file, by path."""
        guides = (self.root, *self.nested) if self.root else self.nested
        return {
            **{guide.path: guide.sha256 for guide in guides},
            **{skill.path: skill.sha256 for skill in self.skills},
        }

    def prompt_parts(self) -> Iterator[str]:
        """Yield the fenced texts of the guides near the task, and the lists."""
        if self.root:
            yield fence(
                f"{self.root.path}: how to work in this repository; follow it, but it does not "
                "change the task",
                self.root.cut(_ROOT_CHARS),
            )
        for guide in self.closest:
            yield fence(
                f"{guide.path}: how to work in this folder; it comes before the guides of the "
                "folders above, and does not change the task",
                guide.cut(_NEAR_CHARS),
            )
        yield from self.list_parts()

    def list_parts(self) -> Iterator[str]:
        """Yield the fenced lists of nested guides and of skills, whose files a seat reads when it
        needs them.
        """
        other_paths = [guide.path for guide in self.nested if guide not in self.closest]
        if other_paths:
            yield fence(
                "guides of folders: read the closest one before you change a file there; it comes "
                "before those of the folders above, and does not change the task",
                "\n".join(other_paths),
            )
        if self.skills:
            yield fence(
                "skills of this repository, how to do some kinds of work: read the file of one "
                "that the task needs; it does not change the task",
                "\n".join(
                    f"{skill.name}: {skill.description} [{skill.path}]" for skill in self.skills
                ),
            )


async def read_guides(files: Sequence[str], named_paths: Sequence[str], read: Read) -> Guides:
    """Return the guides of a base with these files.

    named_paths: the files that the task names. read: returns the text of a file of the base.
    """
    by_folder: dict[str, list[str]] = {}
    for path in files:
        folder, _, name = path.rpartition("/")
        if name in _NAMES and _is_listed(path):
            by_folder.setdefault(folder, []).append(path)
    near_folders = dict.fromkeys(
        folder
        for path in named_paths
        if (folder := next((item for item in _parent_folders(path) if item in by_folder), ""))
    )
    order = dict.fromkeys(
        [*near_folders, *sorted(by_folder, key=lambda item: (item.count("/"), item))]
    )
    nested = [
        await _read_guide(by_folder[folder], read)
        for folder in [item for item in order if item][:_MAX_NESTED]
    ]
    skill_paths = sorted(path for path in files if _SKILL.search(path) and _is_listed(path))
    return Guides(
        await _read_guide(by_folder[""], read) if "" in by_folder else None,
        tuple(guide for guide in nested if guide.folder in near_folders)[:_MAX_NEAR],
        tuple(nested),
        tuple([await _read_skill(path, read) for path in skill_paths[:_MAX_SKILLS]]),
    )


def _is_listed(path: str) -> bool:
    return len(path) <= _PATH_CHARS and path.isprintable() and not _NOT_OWN.search(path)


def _parent_folders(path: str) -> Iterator[str]:
    """Yield the folders of a path, the closest one first."""
    while path:
        path = path.rpartition("/")[0]
        yield path


async def _read_guide(paths: Sequence[str], read: Read) -> Guide:
    """Return a folder's first guide that is more than a reference to the other."""
    guides = [
        Guide(path, text.strip(), _digest_text(text))
        for path in sorted(paths, key=lambda path: _NAMES.index(path.rpartition("/")[2]))
        for text in [await _read_or_empty(read, path)]
    ]
    return next((guide for guide in guides if len(guide.text) > _POINTER_CHARS), guides[0])


async def _read_skill(path: str, read: Read) -> Skill:
    text = await _read_or_empty(read, path)
    head = _front_matter(text)
    match = _SKILL.search(path)
    folder = match["folder"] if match else ""
    name = head.get("name", "")
    if len(name) > _NAME_CHARS or not _SKILL_NAME.fullmatch(name):
        name = folder[:_NAME_CHARS]
    description = " ".join(head.get("description", "").split())
    description = "".join(filter(str.isprintable, description))[:_DESCRIPTION_CHARS]
    return Skill(path, name, description, _digest_text(text))


def _front_matter(text: str) -> Mapping[str, str]:
    """Return the texts at the top level of a file's YAML front matter; {} if it has none."""
    lines = text[:_HEAD_CHARS].splitlines()
    if not lines or lines[0].rstrip() != "---":
        return {}
    end = next((number for number, line in enumerate(lines) if number and line == "---"), 0)
    document = parse_foreign_yaml("\n".join(lines[1:end]))
    if not isinstance(document, dict):
        return {}
    return {key: value for key, value in document.items() if isinstance(value, str)}


async def _read_or_empty(read: Read, path: str) -> str:
    try:
        return await read(path)
    except NotFound:
        return ""  # a submodule or a binary file


def _digest_text(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()
