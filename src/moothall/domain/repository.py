"""Repositories: their profile, and a commit to work on."""

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

    If it fails, `instead` is run. If there is no alternative, the set-up fails, unless the step is
    `optional`.
    """

    argv: tuple[str, ...]
    folder: str = ""
    optional: bool = False
    instead: tuple[SetupStep, ...] = ()


@dataclass(frozen=True, slots=True)
class BuildStep:
    """A command that builds what checks need, in `folder`, before each check that judges.

    `sources` are patterns of the files it compiles, from `folder`: it is skipped unless one of them
    changed. Empty: always run.
    """

    argv: tuple[str, ...]
    folder: str = ""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """How a repository is set up and checked: detected, or from `.moothall.toml` or the registry.

    `setup` are argv lists that run once for each lock file. `checks` maps a check's name (tests,
    lint, build) to its argv, which runs in the folder of `folders` (the root by default). All
    checks are required except those in `advisory`, whose results are only shown. `protected` are
    path patterns (gitignore style, from the root) of tests and test configuration: a candidate is
    judged with the base's versions. `known_failures` are test ids that may fail. `reports` maps a
    check's name to patterns of the JUnit files that it writes, in its folder.

    `steps` is a detected `setup` with its folders and alternatives. `needs` maps languages to
    required versions, in the project's notation (python: a version specifier; node: a semver range;
    go: the minimum version; rust: a channel). `depends` maps a project's folder to the folders of
    its dependencies. `notes` are reported when the base is prepared. With `history`, set-up sees a
    `.git` with the commit and its nearest tag. `builds` run before a check, in order. `declared`
    are the normalised names of the Python packages that any file declares as a dependency. `hidden`
    are patterns of tests that no seat sees.
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
    """Return a base with additional checks. Raises `InvalidRequest` if the repository has a check
    with the same name.
    """
    if duplicates := checks.keys() & base.profile.checks.keys():
        raise InvalidRequest(
            f"the repository has a check called {min(duplicates)}; a task that brings checks of "
            "its own needs that name"
        )
    return (
        replace(base, profile=replace(base.profile, checks={**base.profile.checks, **checks}))
        if checks
        else base
    )


def checks_near(profile: Profile, paths: Sequence[str]) -> tuple[str, ...]:
    """Return the checks of the projects that contain one of `paths`, and of projects that depend on
    them, in the profile's order.

    A path outside of all projects concerns all checks. Without paths, there are no checks.
    """
    folders = {name: profile.folders.get(name, "") for name in profile.checks}
    affected: set[str] = set()
    for path in paths:
        containing = [
            folder
            for folder in set(folders.values())
            if not folder or path.startswith(f"{folder}/")
        ]
        if not containing:
            return tuple(profile.checks)
        affected.add(max(containing, key=len))
    while dependents := {
        folder
        for folder, dependencies in profile.depends.items()
        if folder not in affected and not affected.isdisjoint(dependencies)
    }:
        affected |= dependents
    return tuple(name for name, folder in folders.items() if folder in affected)


@dataclass(frozen=True, slots=True)
class Base:
    """A pinned commit of a known repository. `repository` is its registry id. `image`: the image of
    its workspaces if they are pods, as set by the operator of the preparing host; empty for the
    default.
    """

    repository: str
    sha: str
    profile: Profile
    origin: str = ""
    image: str = ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A base that is ready for work: set up, and checked once.

    `files` are the paths of the base in order, `runs` the checks of the unchanged base. `key` names
    the shared read-only checkout and environment. `flaky` are the cases that differed between two
    runs. `bounds` apply in its workspaces. `notes` tell where the sandbox has another version of a
    language than the project asks for. `hidden` are tests that no seat sees: path → text.
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
class ChangeRange:
    """The commits of a branch that another one lacks. `base_sha` is their merge base; `messages`
    are those of the commits, oldest first.
    """

    repository: str
    base_sha: str
    head_sha: str
    messages: str = ""


@dataclass(frozen=True, slots=True)
class Patch:
    """The changes of a workspace: a commit in the trusted clone and its diff against the base.

    `tests` are the changed paths that are test files. An empty `diff` means that nothing changed.
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
        """Return the ignore rule that excludes a path, '' if none does."""
        names = path.split("/")
        folders = ("".join(f"{name}/" for name in names[:depth]) for depth in range(1, len(names)))
        return self.ignored.get(path) or next(
            (self.ignored[folder] for folder in folders if folder in self.ignored), ""
        )


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The result of delivering an approved commit.

    `status`: `left` on its branch, `pushed` as that branch, `merged` into `branch` as `commit_sha`,
    or `moved`: `branch` is now at `tip`, with which the commit was not checked; `diff` is then the
    commit's change. `why` it was left, if more was requested.
    """

    status: Literal["left", "pushed", "merged", "moved"]
    branch: str = ""
    commit_sha: str = ""
    tip: str = ""
    diff: str = ""
    why: str = ""
