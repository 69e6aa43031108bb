"""How a repository is set up and checked: from `.moothall.toml` or the registry, else detected from
its files.

Commands are argv lists, run in the sandbox in the checkout. A command that names /env/bin/… gets a
Python environment at /env, created before setup; its `bin` is first on the PATH. All keys of a
`.moothall.toml` are optional; a string is split into words as by a shell, but no shell runs it:

    setup = ["/env/bin/pip install -r ci.txt"]
    build = ["python setup.py build_ext --inplace"] # before each check, on the files as they are
    protected = ["golden/**", "!tests/data/**"]     # added to the usual test files; '!' takes back
    known_failures = ["tests/test_old.py::test_flaky"]
    advisory = ["lint"]                             # checks that are shown and decide nothing
    [checks]
    tests = ["python", "-m", "pytest"]
    lint = "ruff check ."
    [reports]
    tests = "build/junit/*.xml"                     # JUnit files that the check writes, where its
    runner's cases can't be read
    [hidden]
    tests = ["tests/hidden/**"]                     # tests that seats never see; they run on every
    answer
    [folders]
    tests = "python"                                # where a check runs; the root by default

`to_toml` writes such a file from a profile. `declared_packages` reads the Python packages that a
repository declares in any of its files.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import stat
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from moothall.domain.ids import digest
from moothall.domain.repository import BuildStep, Profile
from moothall.errors import AlreadyExists, RepositoryError, wrong_fields
from moothall.repositories.clone import TrustedClone
from moothall.repositories.detect import (
    MAX_PROJECTS,
    Detected,
    detect,
    find_manifests,
    likely_setup_files,
    setup_commands,
)
from moothall.repositories.detect.project import Project
from moothall.repositories.detect.requirements import parse
from moothall.repositories.patch_rules import TEST_PATTERNS, invalid_path_reason, matches
from moothall.repositories.pristine_files import CONFIGURATION

_PACKAGE_LISTS = (
    "requirements*.txt",
    "requirements*.in",
    "*[-_]requirements.txt",
    "requirements/**",
    "reqs/**",
    "environment*.y*ml",
)
_MAX_LISTS, _MAX_PACKAGES = 40, 2000
_TABLES = re.compile(r"^(?:.*dependenc(?:y|ies)(?:-groups)?|(?:build-)?requires)$")
_INI_KEYS = re.compile(r"^(?:.*requires?|deps)$")
_KEYWORDS = re.compile(r"requires?$")
_CODE_LISTS = re.compile(r"require|depend", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LINE = re.compile(r"\s*(?:-\s+)?(?:[\w{},!.-]+:\s+)?(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)")
_EGG = re.compile(r"[#&]egg=(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)")
CONFIG_FILE = ".moothall.toml"
PROTECTED = (*TEST_PATTERNS, *CONFIGURATION, CONFIG_FILE)
TEXT_BYTES = 1_000_000
_CHECK_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_Pattern = Annotated[str, Field(min_length=1, max_length=200)]


def find_package_lists(files: Collection[str]) -> tuple[str, ...]:
    """Return the files that list packages, other than manifests."""
    return tuple(sorted(path for path in files if matches(_PACKAGE_LISTS, path)))[:_MAX_LISTS]


def declared_packages(texts: Mapping[str, str], setup: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the normalised names of all packages that files and the commands of `setup` name as
    dependencies.
    """
    names = [name for argv in setup for name in _of_command(argv)]
    for path, text in texts.items():
        project = Project("", frozenset(), {path: text})
        match path.rpartition("/")[2]:
            case "pyproject.toml":
                names += _of_tables(_toml(project, path))
            case "Pipfile":
                data = _toml(project, path)
                names += [*_names(data.get("packages")), *_names(data.get("dev-packages"))]
            case "setup.cfg" | "tox.ini":
                names += _of_sections(project.ini(path))
            case "setup.py" | "noxfile.py":
                names += _of_code(parse(text))
            case _ if matches(_PACKAGE_LISTS, path):
                names += _of_lines(text.splitlines())
    return tuple(sorted({re.sub(r"[-_.]+", "-", name).lower() for name in names}))[:_MAX_PACKAGES]


def _of_command(argv: Sequence[str]) -> Iterator[str]:
    words = argv[argv.index("install") + 1 :] if "install" in argv else ()
    for word in words:
        if match := _NAME.match(word):
            yield match[0]


def _toml(project: Project, path: str) -> Mapping[str, Any]:
    try:
        return project.toml(path)
    except RepositoryError:
        return {}


def _of_tables(data: Mapping[str, Any]) -> Iterator[str]:
    for key, value in data.items():
        if _TABLES.match(key):
            yield from _names(value)
        elif isinstance(value, dict):
            yield from _of_tables(value)


def _names(data: Any) -> Iterator[str]:
    """Yield the packages of a list of requirements, of a table of versions (Poetry), or of groups
    of either.
    """
    if isinstance(data, list):
        yield from (
            match[0] for item in data if isinstance(item, str) and (match := _NAME.match(item))
        )
    elif isinstance(data, dict):
        for key, value in data.items():
            group = isinstance(value, list) and not any(
                isinstance(item, dict) and "version" in item for item in value
            )
            yield from _names(value) if group else (key,)


def _of_sections(sections: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for section, options in sections.items():
        for key, value in options.items():
            if _INI_KEYS.match(key) or section.endswith("extras_require"):
                yield from _of_lines(value.splitlines())


def _of_lines(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        match = _EGG.search(line) or _LINE.match(line)
        if match and not line.lstrip().startswith(("#", "-r", "-c")):
            yield match["name"]


def _of_code(tree: ast.Module) -> Iterator[str]:
    """Yield the packages that setup() requires, that are in lists of requirements, and that nox
    sessions install.
    """
    for node in ast.walk(tree):
        values: list[ast.expr] = []
        if isinstance(node, ast.Call):
            values = [
                keyword.value
                for keyword in node.keywords
                if keyword.arg and _KEYWORDS.search(keyword.arg)
            ]
            if isinstance(node.func, ast.Attribute) and node.func.attr == "install":
                values += node.args
        elif isinstance(node, ast.Assign) and any(
            _CODE_LISTS.search(ast.unparse(target)) for target in node.targets
        ):
            values = [node.value]
        for value in values:
            for part in ast.walk(value):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield from _of_lines(part.value.splitlines())


def _words(value: Any) -> Any:
    try:
        return tuple(shlex.split(value)) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"cannot be split into words: {error}") from error


def _no_null(words: tuple[str, ...]) -> tuple[str, ...]:
    if any("\0" in word for word in words) or not words[0].strip():
        raise ValueError("a command must not contain null characters, and must name a program")
    return words


def _folder(folder: str) -> str:
    if reason := invalid_path_reason(folder):
        raise ValueError(f"a check's folder must be in the repository: {reason}")
    return folder


def _check_name(name: str) -> str:
    if not _CHECK_NAME.fullmatch(name):
        raise ValueError("a check's name is 1 to 32 lower-case letters, digits, '-' or '_'")
    return name


_Argv = Annotated[
    tuple[Annotated[str, Field(max_length=4000)], ...],
    Field(min_length=1, max_length=200),
    BeforeValidator(_words),
    AfterValidator(_no_null),
]
_Folder = Annotated[str, Field(max_length=500), AfterValidator(_folder)]


def _check_report_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    if any(pattern.startswith("/") or ".." in pattern.split("/") for pattern in patterns):
        raise ValueError("a report must be in the checkout: use a relative pattern without '..'")
    return patterns


_Patterns = Annotated[
    tuple[_Pattern, ...],
    Field(min_length=1, max_length=20),
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    AfterValidator(_check_report_patterns),
]


class Hidden(BaseModel):
    """Tests of the repository that seats never see."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tests: Annotated[tuple[_Pattern, ...], Field(max_length=200), BeforeValidator(_words)] = ()


class Commands(BaseModel):
    """The settings of a repository that a person made; None is left to detection."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    setup: Annotated[tuple[_Argv, ...], Field(max_length=50)] | None = None
    checks: (
        Annotated[dict[Annotated[str, AfterValidator(_check_name)], _Argv], Field(max_length=20)]
        | None
    ) = None
    protected: Annotated[tuple[_Pattern, ...], Field(max_length=200)] = ()
    known_failures: Annotated[
        tuple[Annotated[str, Field(max_length=500)], ...], Field(max_length=5000)
    ] = ()
    reports: (
        Annotated[
            dict[Annotated[str, AfterValidator(_check_name)], _Patterns], Field(max_length=20)
        ]
        | None
    ) = None
    advisory: Annotated[
        tuple[Annotated[str, AfterValidator(_check_name)], ...], Field(max_length=20)
    ] = ()
    folders: Annotated[
        dict[Annotated[str, AfterValidator(_check_name)], _Folder], Field(max_length=20)
    ] = Field({})
    build: Annotated[tuple[_Argv, ...], Field(max_length=50)] | None = None
    hidden: Hidden = Hidden()

    def over(self, defaults: Commands) -> Commands:
        """Return these commands with `defaults` for missing ones; patterns, failures and advisory
        checks are combined.
        """
        return Commands(
            setup=defaults.setup if self.setup is None else self.setup,
            build=defaults.build if self.build is None else self.build,
            checks=defaults.checks if self.checks is None else self.checks,
            protected=(*defaults.protected, *self.protected),
            known_failures=(*defaults.known_failures, *self.known_failures),
            reports=defaults.reports if self.reports is None else self.reports,
            advisory=(*defaults.advisory, *self.advisory),
            folders={**defaults.folders, **self.folders},
            hidden=Hidden(tests=(*defaults.hidden.tests, *self.hidden.tests)),
        )


async def read_profile(
    clone: TrustedClone,
    sha: str,
    registered: Commands | None = None,
    *,
    max_projects: int = MAX_PROJECTS,
    uncommitted_config: str | None = None,
) -> Profile:
    """Return the profile of a commit. `registered` settings override the repository's own file.

    uncommitted_config: a text that replaces that of the committed file.
    max_projects: projects in more folders have no check.
    """
    objects = {
        entry.path: entry.oid
        for entry in await clone.entries(sha)
        if entry.target is None and not entry.unpatchable_reason
    }
    manifests = dict.fromkeys(
        (*find_manifests(objects, max_projects), *find_package_lists(objects))
    )
    paths = [
        *manifests,
        *([CONFIG_FILE] if CONFIG_FILE in objects and uncommitted_config is None else []),
    ]
    blobs = await clone.read_all(sha, paths, TEXT_BYTES)
    texts = {path: blob.decode(errors="replace") for path, blob in zip(paths, blobs, strict=True)}
    return make_profile(
        objects,
        texts if uncommitted_config is None else {**texts, CONFIG_FILE: uncommitted_config},
        registered,
        max_projects,
    )


def make_profile(
    objects: Mapping[str, str],
    texts: Mapping[str, str],
    registered: Commands | None = None,
    max_projects: int = MAX_PROJECTS,
) -> Profile:
    """Return the profile of a tree of path → object id, from the texts of its manifests and lists.
    Pure.
    """
    file_commands = parse_config_file(texts[CONFIG_FILE]) if CONFIG_FILE in texts else Commands()
    commands = registered.over(file_commands) if registered else file_commands
    try:
        detected = detect(objects, texts, max_projects)
    except RepositoryError:
        if commands.setup is None or commands.checks is None:
            raise
        detected = Detected()  # a person configured everything
    checks_detected = commands.checks is None
    setup = setup_commands(detected.steps) if commands.setup is None else commands.setup
    checks = dict(detected.checks if commands.checks is None else commands.checks)
    folders = {**(detected.folders if checks_detected else {}), **commands.folders}
    reads = sorted(
        {
            path
            for path in (detected.reads if commands.setup is None else likely_setup_files(objects))
            if path in objects
        }
    )
    return Profile(
        setup=setup,
        checks=checks,
        protected=(*PROTECTED, *detected.protected, *commands.protected),
        known_failures=commands.known_failures,
        reports=dict(commands.reports or {}),
        lock_digest=_lock_digest(setup, {path: objects[path] for path in reads}),
        advisory=tuple(
            name
            for name in checks
            if name in commands.advisory or (checks_detected and name in detected.advisory)
        ),
        folders={name: folder for name, folder in folders.items() if name in checks},
        steps=detected.steps if commands.setup is None else (),
        needs=detected.needs,
        depends=detected.depends if checks_detected else {},
        notes=detected.notes if checks_detected else (),
        history=detected.history or commands.setup is not None,
        declared=declared_packages(texts, setup),
        builds=_builds(detected, commands),
        hidden=commands.hidden.tests,
    )


def _builds(detected: Detected, commands: Commands) -> tuple[BuildStep, ...]:
    """Return the build steps before a check: the configured ones, or the detected ones if the setup
    is detected too.
    """
    if commands.build is not None:
        return tuple(BuildStep(argv) for argv in commands.build)
    return detected.builds if commands.setup is None else ()


def read_text(path: Path, limit: int = TEXT_BYTES) -> str | None:
    """Return the text of a regular file, at most `limit` bytes of it, or None. Links
    are not followed.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return os.read(descriptor, limit).decode(errors="replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)


def parse_config_file(text: str, name: str = CONFIG_FILE) -> Commands:
    """Parse a `.moothall.toml` or another file of that format. Raises `RepositoryError` that names
    the wrong line.
    """
    try:
        return Commands.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RepositoryError(f"{name} is not TOML: {error}") from error
    except ValidationError as error:
        first = wrong_fields(error)[0]
        keys = [str(part) for part in first.place if part != "[key]"]
        hint = (
            ""
            if first.fault != "extra_forbidden"
            else f"; the keys are {', '.join(Commands.model_fields)}"
        )
        raise RepositoryError(
            f"{name}, line {_line_of(text, keys)}: {'.'.join(keys) or 'file'}: "
            f"{first.sentence}{hint}"
        ) from error


def _line_of(text: str, keys: list[str]) -> int:
    """Return the line of the innermost key that is in the text (list indices are not)."""
    lines = text.splitlines()
    for key in reversed(keys):
        for number, line in enumerate(lines, 1):
            if not key.isdigit() and re.match(
                rf"\s*\[*\s*[\"']?{re.escape(key)}[\"']?\s*[\]=.]", line
            ):
                return number
    return 1


def _lock_digest(setup: tuple[tuple[str, ...], ...], reads: Mapping[str, str]) -> str:
    commands = [digest(*argv) for argv in setup]
    files = [digest(path, oid) for path, oid in sorted(reads.items())]
    return digest("lock", *commands, "files", *files)


# The `.moothall.toml` of a profile.


_HEAD = (
    "# How Moothall sets this repository up and checks it. Commit it: councils on other machines "
    "read it from the commit.\n"
    "# `setup` runs once for each lock file, with the network. `build`, before each check, and "
    "`checks` run without it.\n"
    "# No shell runs any of them.\n"
)


def commands_of(profile: Profile) -> Commands:
    """Return the settings that give the same profile."""
    settings = {
        "setup": profile.setup,
        "build": setup_commands(profile.builds),
        "checks": dict(profile.checks),
        "protected": tuple(pattern for pattern in profile.protected if pattern not in PROTECTED),
        "known_failures": profile.known_failures,
        "advisory": profile.advisory,
        "folders": dict(profile.folders),
        "hidden": {"tests": profile.hidden},
    }
    return Commands.model_validate(
        {name: value for name, value in settings.items() if name in Commands.model_fields}
    )


def to_toml(commands: Commands) -> str:
    """Return the text of a configuration file. A command is written as one line if that splits into
    the same words.
    """
    settings = {
        name: value
        for name, value in commands.model_dump(mode="json").items()
        if value or name in {"setup", "checks"}
    }
    tables = {
        name: _filled_table(value) for name, value in settings.items() if isinstance(value, Mapping)
    }
    tables = {name: table for name, table in tables.items() if table or name == "checks"}
    lines = [
        f"{name} = {_toml_value(value)}"
        for name, value in settings.items()
        if not isinstance(value, Mapping) and value is not None
    ]
    for name, table in tables.items():
        lines += [
            "",
            f"[{name}]",
            *(f"{_toml_key(key)} = {_toml_command(value)}" for key, value in table.items()),
        ]
    return _HEAD + "\n" + "\n".join(lines) + "\n"


def write_config_file(top: Path, text: str, *, replace: bool) -> Path:
    """Write the file at the top of a work tree and return its path. Raises `AlreadyExists`,
    `RepositoryError`.
    """
    path = top / CONFIG_FILE
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_TRUNC if replace else os.O_EXCL)
    try:
        with os.fdopen(os.open(path, flags, 0o644), "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise AlreadyExists(f"{path} already exists; --force overwrites it") from error
    except OSError as error:
        raise RepositoryError(f"{path} cannot be written: {error.strerror}") from error
    return path


def _filled_table(table: Mapping[str, object]) -> Mapping[str, object]:
    return {key: value for key, value in table.items() if value}


def _toml_value(value: object) -> str:
    if isinstance(value, str):
        return _string(value)
    if not isinstance(value, Sequence):
        return json.dumps(value)
    items = list(_items(value))
    return (
        f"[{', '.join(items)}]"
        if len(", ".join(items)) < 100  # noqa: PLR2004 - a line
        else "[\n" + "".join(f"    {item},\n" for item in items) + "]"
    )


def _items(values: Sequence[object]) -> Iterator[str]:
    for value in values:
        yield _toml_command(value)


def _toml_command(value: object) -> str:
    """Return a command as one line that splits into its words, else as a list."""
    if isinstance(value, list) and "\n" not in (line := shlex.join(map(str, value))):
        return _string(line)
    return _toml_value(value)


def _toml_key(key: str) -> str:
    return (
        key if key.replace("-", "").replace("_", "").isalnum() and key.isascii() else _string(key)
    )


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
