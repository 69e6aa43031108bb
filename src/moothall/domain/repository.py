"""Repositories: how one is checked, and a commit of it that work starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from moothall.domain.evidence import CheckRun
from moothall.domain.tool import Bounds
from moothall.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class SetupStep:
    """A command of a detected set-up, run in `folder` (the root by default).

    Where it fails, `instead` is done; where there is nothing to do instead, the set-up fails,
    unless the step is `optional`.
    """

    argv: tuple[str, ...]
    folder: str = ""
    optional: bool = False
    instead: tuple[SetupStep, ...] = ()


@dataclass(frozen=True, slots=True)
class BuildStep:
    """A command that builds what checks run, in `folder`, before each check that judges.

    `sources` are patterns of the files it compiles, from `folder`: it is skipped unless one of them
    changed. Empty: always run.
    """

    argv: tuple[str, ...]
    folder: str = ""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """How to set up and check a repository; detected, or said by `.moothall.toml` or the registry.

    `setup` are argv lists run once per lock file; `checks` maps a check's name (tests, lint, build)
    to its argv, run in the folder that `folders` names (the root by default). Every check is
    required but those in `advisory`, whose result is shown and decides nothing. `protected` are
    path patterns (gitignore style,
    from the root) of tests and test configuration: a candidate is judged with them as they were on
    the base. `known_failures` are test ids that may stay red. `reports` maps a check's name to
    patterns of the JUnit files that it writes, in the folder where it runs.

    `steps` is a detected `setup` with its folders and ways out. `needs` says which toolchains it
    wants: language → versions, in the words of the project (python: a version specifier; node: a
    semver range; go: the least version; rust: a channel). `depends` maps a project's folder to the
    folders of those that it is built on; `notes` are said when the base is prepared. With `history`
    set-up sees a `.git` of the commit and its nearest tag. `builds` are run before a
    check, in order. `declared` are the normalised names of the Python packages that any file
    declares as a dependency. `hidden` are patterns of tests that no seat sees.
    """

    setup: tuple[tuple[str, ...], ...] = ()
    checks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    protected: tuple[str, ...] = ()
    known_failures: tuple[str, ...] = ()
    lock_digest: str = ""
    advisory: tuple[str, ...] = ()
    folders: Mapping[str, str] = field(default_factory=dict)
    reports: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    steps: tuple[SetupStep, ...] = ()
    needs: Mapping[str, str] = field(default_factory=dict)
    depends: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    history: bool = False
    declared: tuple[str, ...] = ()
    builds: tuple[BuildStep, ...] = ()
    hidden: tuple[str, ...] = ()


def with_checks(base: Base, checks: Mapping[str, tuple[str, ...]]) -> Base:
    """Return a base that is judged by these checks, too. Raises `InvalidRequest` for a name that a
    check of its own has.
    """
    if taken := checks.keys() & base.profile.checks.keys():
        raise InvalidRequest(
            f"the repository has a check called {min(taken)}; a task that brings checks of its own "
            "needs that name"
        )
    return (
        replace(base, profile=replace(base.profile, checks={**base.profile.checks, **checks}))
        if checks
        else base
    )


def checks_near(profile: Profile, paths: Sequence[str]) -> tuple[str, ...]:
    """Return the checks of the projects that hold one of `paths`, and of those built on them, in
    the profile's order.

    A path that lies in no project's folder concerns all. No paths: no checks.
    """
    folders = {name: profile.folders.get(name, "") for name in profile.checks}
    near: set[str] = set()
    for path in paths:
        holding = [
            folder
            for folder in set(folders.values())
            if not folder or path.startswith(f"{folder}/")
        ]
        if not holding:
            return tuple(profile.checks)
        near.add(max(holding, key=len))
    while more := {
        folder
        for folder, below in profile.depends.items()
        if folder not in near and not near.isdisjoint(below)
    }:
        near |= more
    return tuple(name for name, folder in folders.items() if folder in near)


@dataclass(frozen=True, slots=True)
class Base:
    """A pinned commit of a known repository. `repository` is the registry's id of it. `image`: what
    its workspaces run in where they are pods, as the host that prepares it is told by its operator;
    empty: as all.
    """

    repository: str
    sha: str
    profile: Profile
    origin: str = ""
    image: str = ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A base that is ready to work on: set up, checked once as it is.

    `files` are the paths of the base in order, `runs` what each check says of the untouched base.
    `key` names the shared read-only checkout and environment. `flaky` are the cases that differed
    between two runs of it; `bounds` hold in workspaces on it. `notes` say where the sandbox has
    another version of a language than the project asks for. `hidden` are tests that no seat sees:
    path → text.
    """

    base: Base
    key: str
    files: tuple[str, ...]
    runs: Mapping[str, CheckRun] = field(default_factory=dict)
    flaky: tuple[str, ...] = ()
    bounds: Bounds = Bounds()
    notes: tuple[str, ...] = ()
    hidden: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Patch:
    """What came out of a workspace: a commit in the trusted clone and its diff against the base.

    `tests` are those changed paths that are test files; an empty `diff` means nothing changed.
    `message` joins the messages of commits made in the workspace, oldest first. `ignored` are new
    files that are left out because of .gitignore: path → rule. A path that ends with a slash is a
    folder whose files are not listed.
    """

    base_sha: str
    commit_sha: str
    diff: str
    paths: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    message: str = ""
    ignored: Mapping[str, str] = field(default_factory=dict)

    def rule_for(self, path: str) -> str:
        """Return the rule that leaves a path out, '' if none does."""
        names = path.split("/")
        folders = ("".join(f"{name}/" for name in names[:end]) for end in range(1, len(names)))
        return self.ignored.get(path) or next(
            (self.ignored[folder] for folder in folders if folder in self.ignored), ""
        )


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What became of an approved commit.

    `status`: `left` on its branch, `pushed` as that branch, `merged` into `branch` as `commit_sha`,
    or `moved`: `branch` is at `tip` now, which the commit was not checked with; `diff` is then what
    the commit changes. `why` it was left, where more was wanted.
    """

    status: Literal["left", "pushed", "merged", "moved"]
    branch: str = ""
    commit_sha: str = ""
    tip: str = ""
    diff: str = ""
    why: str = ""
