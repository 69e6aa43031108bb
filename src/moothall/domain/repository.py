"""Repositories: how one is checked, and a commit of it that work starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moothall.domain.evidence import CheckRun


@dataclass(frozen=True, slots=True)
class Profile:
    """How to set up and check a repository; detected, or said by `.moothall.toml` or the registry.

    `setup` are argv lists run once per lock file; `checks` maps a check's name (tests, lint, build)
    to its argv, run in the folder that `folders` names (the root by default). Every check is required but those in
    `advisory`, whose result is shown and decides nothing. `protected` are path patterns (gitignore style,
    from the root) of tests and test configuration: a candidate is judged with them as they were on
    the base. `known_failures` are test ids that may stay red. `reports` maps a check's name to patterns of the JUnit files that
    it writes, in the folder where it runs.
    """

    setup: tuple[tuple[str, ...], ...] = ()
    checks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    protected: tuple[str, ...] = ()
    known_failures: tuple[str, ...] = ()
    lock_digest: str = ""
    advisory: tuple[str, ...] = ()
    folders: Mapping[str, str] = field(default_factory=dict)
    reports: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Base:
    """A pinned commit of a known repository. `repository` is the registry's id of it."""

    repository: str
    sha: str
    profile: Profile
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A base that is ready to work on: set up, checked once as it is.

    `files` are the paths of the base in order, `runs` what each check says of the untouched base.
    `key` names the shared read-only checkout and environment. `flaky` are the cases that differed between two runs of it.
    """

    base: Base
    key: str
    files: tuple[str, ...]
    runs: Mapping[str, CheckRun] = field(default_factory=dict)
    flaky: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Patch:
    """What came out of a workspace: a commit in the trusted clone and its diff against the base.

    `tests` are those changed paths that are test files; an empty `diff` means nothing changed.
    """

    base_sha: str
    commit_sha: str
    diff: str
    paths: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
