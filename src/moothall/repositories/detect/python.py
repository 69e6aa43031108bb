"""Detection of Python projects, including Django projects without pytest. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from moothall.domain.repository import SetupStep
from moothall.repositories.detect.project import (
    Build,
    DetectedProject,
    Project,
    detect_python_build,
    join_inside,
    strings,
    table,
)
from moothall.repositories.detect.requirements import (
    extras,
    groups,
    plugins,
    requirement_files,
    runtime,
    setup_keyword,
    setup_requirements,
    versions,
)
from moothall.repositories.detect.tox import session_words
from moothall.repositories.patch_rules import matches
from moothall.sandbox_runtime.checks import PLUGINS

_DJANGO_TEST = re.compile(
    r"(?:django-admin(?:\.py)?|-m[ \"',]+django)[ \"',]+test\b(?P<words>[^\n\]]*)"
)
"""Django's test command in the configuration of tox and nox."""
_DJANGO_SETTINGS = re.compile(
    r"DJANGO_SETTINGS_MODULE[\"']?\s*[=:,]\s*[\"']?(?P<module>\w+(?:\.\w+)+|\w+)"
)
_ARGUMENT = re.compile(r"--?[\w-]+(?:=[\w./:-]+)?|[\w./-]+")
_SESSIONS = ("tox.ini", "setup.cfg", "pyproject.toml", "tox.toml", "noxfile.py")
_NOT_PROJECT_FOLDERS = re.compile(
    r"(?:^|/)(?:docs?|examples?|samples?|demos?|templates?|node_modules|\..+)(?:/|$)", re.IGNORECASE
)
_MAX_DEPTH = 2
ENV_PYTHON = "/env/bin/python"
PIP = (ENV_PYTHON, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check")
LOCKED = (ENV_PYTHON, "-I", f"{PLUGINS}/moothall_lock_constraints.py")
"""Writes the versions of a lock file to another file."""
LINE_BY_LINE = (ENV_PYTHON, "-I", f"{PLUGINS}/moothall_requirements.py")
"""Installs as much of a requirements file as possible, and reports the rest."""
TEXTS = (
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    "tox.ini",
    "tox.toml",
    "noxfile.py",
    "pytest.ini",
    ".pytest.ini",
    "ruff.toml",
    ".ruff.toml",
    ".python-version",
    "hatch.toml",
    "Pipfile",
    "manage.py",
)
_LOCKS = ("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "Pipfile.lock")
_SETUP_FILES = (*(name for name in TEXTS if name != "manage.py"), *_LOCKS)
_LOCKED_VERSIONS = "/env/locked.txt"
_TEST_FILES = ("test_*.py", "*_test.py")
_OTHER_TEST_FILES = (
    "/test.py",
    "/tests.py",
    "/tests/*.py",
    "/test/*.py",
    "/*/tests.py",
    "/*/tests/*.py",
    "/src/*/tests/*.py",
)
_UNCOLLECTED_TEST_FILES = ("/test/test.py", "/test/tests.py", "/tests/test.py", "/tests/tests.py")
"""Tests that pytest would not collect, because it finds others beside them."""
_DOCTEST_OPTIONS = re.compile(
    r"--doctest-modules|--doctest-plus|--xdoctest(?:-modules)?|--doctest-(?:glob|extension)[= "
    r"][\"']?[\w.*]+"
)
"""Options that make pytest run examples as tests."""
_PYTEST_LINE = re.compile(r"(?m)^.*\bpytest\b.*$")
_DOCTEST_LINE = re.compile(r"-m doctest\b|\bwith-doctest\b")
_NOT_TEST_FILES = re.compile(
    r"(?:^|/)(?:__init__|conftest|utils?|helpers?|common|base|settings|_.*)\.py$"
)
_MAX_TEST_FILES = 50
_VERSION_FROM_GIT = re.compile(
    r"hatch[-_]vcs|setuptools[-_]scm|versioningit|\bpbr\b|dunamai|dynamic[-_]versioning|setuptools[-_]git|versioneer|vcversioner|setupmeta"
    r"|source\s*=\s*[\"'](?:scm|vcs)|git[-_ "
    r"]describe|[\"']git[\"']|flit[-_]scm|milksnake|incremental|miniver"
)
_CONFIG_FILES = ("pyproject.toml", "setup.cfg", "tox.ini", "pytest.ini", ".pytest.ini")


def configures_pytest(project: Project) -> bool:
    """Return whether a file configures pytest."""
    return (
        any(name in project.files for name in ("pytest.ini", ".pytest.ini", "pytest.toml"))
        or "pytest" in project.ini("tox.ini")
        or "tool:pytest" in project.ini("setup.cfg")
        or bool(table(project.toml("pyproject.toml"), "tool", "pytest"))
    )


def django_command(project: Project) -> tuple[str, ...]:
    """Return the command of a project whose tests need Django's own runner, or ().

    Projects that configure pytest do not need it.
    """
    if (
        configures_pytest(project)
        or project.any("conftest.py")
        or not project.any("test*.py", "tests/*.py")
    ):
        return ()
    return _manage(project) or _sessions(project)


def own_runner_files(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files that start the tests of such a command; they are protected."""
    return tuple(argument for argument in command if argument in {"manage.py", "runtests.py"})


def run_folder(command: tuple[str, ...]) -> str:
    """Return the folder in which such a command runs, or '' for the project's own."""
    return next(
        (
            argument.removeprefix("--chdir=")
            for argument in command
            if argument.startswith("--chdir=")
        ),
        "",
    )


def _manage(project: Project) -> tuple[str, ...]:
    """Return the command of a project with Django's manage.py, at its top or in a folder."""
    if "manage.py" in project.files and "django" in project.texts.get("manage.py", ""):
        return ("python", "manage.py", "test")
    folders = sorted(
        (
            folder
            for path in project.files
            if path.endswith("/manage.py")
            and (folder := path.rpartition("/")[0])
            and not _NOT_PROJECT_FOLDERS.search(folder)
            and folder.count("/") < _MAX_DEPTH
            and project.any(f"/{folder}/*/settings.py", f"/{folder}/*/settings/*.py")
        ),
        key=lambda folder: (folder.count("/"), folder),
    )
    return ("env", f"--chdir={folders[0]}", "python", "manage.py", "test") if folders else ()


def _sessions(project: Project) -> tuple[str, ...]:
    """Return the test command in tox or nox if it is Django's own or a runtests.py, or ()."""
    config = "\n".join(project.texts.get(name, "") for name in _SESSIONS)
    settings = _DJANGO_SETTINGS.search(config)
    env = ("env", f"DJANGO_SETTINGS_MODULE={settings['module']}") if settings else ()
    if re.search(r"\bpytest\b", config):
        return ()
    if match := _DJANGO_TEST.search(config):
        arguments = [
            argument
            for argument in _ARGUMENT.findall(re.sub(r"\{.*?\}", "", match["words"]))
            if argument != "--"
        ]
        return (*env, "python", "-m", "django", "test", *arguments)
    if "runtests.py" in project.files and "runtests.py" in config:
        return (*env, "python", "runtests.py")
    return ()


def python(
    project: Project, tested_folders: Sequence[str], projects_by_name: Mapping[str, Project]
) -> DetectedProject | None:
    """Detect a Python project; return None otherwise.

    `tested_folders` are folders below this one with checks of their own; `projects_by_name` are all
    Python projects of the repository.
    """
    pyproject = project.toml("pyproject.toml")
    if not pyproject and not project.any("*.py"):
        return None
    lint = _uses_ruff(project, pyproject)
    tests = _tests(project, tested_folders)
    if (
        tested_folders
        and not tests
        and not any(name in project.files for name in _SETUP_FILES)
        and not requirement_files(project)
    ):
        return None  # all Python code here belongs to one of the folders
    local = _siblings(project, pyproject, projects_by_name)
    siblings = list(dict.fromkeys(local.values()))
    checks: dict[str, tuple[str, ...]] = {}
    if tests:
        checks["tests"] = tests
    if lint:
        checks["lint"] = ("python", "-m", "ruff", "check", ".")
    history = _takes_version_from_git(project)
    build = _detect_build(project, pyproject, history=history)
    return DetectedProject(
        steps=(
            *_steps(project, pyproject, local, run_folder(tests)),
            *build.steps,
            *((SetupStep((*PIP, "ruff"), project.folder, optional=True),) if lint else ()),
        ),
        checks=checks,
        advisory=("lint",) if lint else (),
        protected=(
            *(("ruff.toml", ".ruff.toml") if lint else ()),
            *own_runner_files(tests),
            *build.protected,
        ),
        reads=(
            *(
                path
                for path in (*_SETUP_FILES, *requirement_files(project))
                if path in project.files
            ),
            *build.reads,
        ),
        needs={**_needs(project, pyproject), **build.needs},
        builds=build.builds,
        depends=tuple(siblings),
        history=history,
    )


def _uses_ruff(project: Project, pyproject: Mapping[str, Any]) -> bool:
    return (
        "ruff" in table(pyproject, "tool")
        or "ruff.toml" in project.files
        or ".ruff.toml" in project.files
    )


def _takes_version_from_git(project: Project) -> bool:
    return any(
        _VERSION_FROM_GIT.search(project.texts.get(name, ""))
        for name in ("pyproject.toml", "setup.py", "setup.cfg")
    )


def _detect_build(project: Project, pyproject: Mapping[str, Any], *, history: bool) -> Build:
    """Return the build of a project's compiled code, or an empty build."""
    if "build-system" not in pyproject and "setup.py" not in project.files:
        return Build()
    versioned_name = project_name(project) if history else ""
    return detect_python_build(project, pyproject, PIP, versioned_name=versioned_name) or Build()


def _steps(
    project: Project, pyproject: Mapping[str, Any], siblings: Mapping[str, str], tests_folder: str
) -> tuple[SetupStep, ...]:
    """Return the installation of all packages in one resolution; its alternatives install them
    separately.

    siblings: other projects of the repository: name → folder.
    tests_folder: the folder in which the tests run, '' for the project's own.
    """
    tool = table(pyproject, "tool")
    installable = (
        "build-system" in pyproject or "setup.py" in project.files or "setup.cfg" in project.files
    ) and table(tool, "uv").get("package") is not False
    extra_names = extras(project, pyproject)
    # Editable, so that tests import the candidate's code and never a copy of the base's.
    self_words = (
        ["-e", "."]
        if installable and tool.get("poetry", {}).get("package-mode") is not False
        else []
    )
    required = [] if self_words else runtime(pyproject, project.path("pyproject.toml"))
    optional = groups(project, pyproject, session_words(project, pyproject))
    if "requirements.txt" in project.files and not self_words:
        required += ["-r", "requirements.txt"]
    elif "requirements.txt" in project.files:
        optional = {"requirements.txt": ("-r", "requirements.txt"), **optional}
    if tests_folder and f"{tests_folder}/requirements.txt" in project.files:
        required += ["-r", f"{tests_folder}/requirements.txt"]
    config = "\n".join(text for name, text in project.texts.items() if name in _CONFIG_FILES)
    if missing := [
        name for name in plugins(config) if not any(name in group for group in optional.values())
    ]:
        optional["pytest's options"] = tuple(missing)
    local, required, optional = _from_folders(project, siblings, required, optional)
    minimum = (*local, "pytest", *required, *self_words)
    if self_words and extra_names:
        optional = {
            **optional,
            f"extras {','.join(extra_names)}": ("-e", f".[{','.join(extra_names)}]"),
        }
    folder = project.folder
    minimal_step = SetupStep((*PIP, *minimum), folder, instead=_line_by_line(minimum, folder))
    if not optional:
        return _as_locked(project, minimal_step)
    pairs = _each_once(
        word for part in optional.values() for word in _pairs(part) if word != ("pytest",)
    )
    with_extras = self_words and any(part[0] == "-e" and part[1].startswith(".[") for part in pairs)
    optional_words = [word for part in pairs for word in part]
    piece_steps = tuple(_piece(part, folder) for part in optional.values())
    # pip accepts the project only once: with extras if it has any.
    complete = (
        *PIP,
        *local,
        "pytest",
        *required,
        *optional_words,
        *(() if with_extras else self_words),
    )
    return _as_locked(project, SetupStep(complete, folder, instead=(minimal_step, *piece_steps)))


def _line_by_line(minimum: tuple[str, ...], folder: str) -> tuple[SetupStep, ...]:
    """Return steps that install the same without the development tools in its requirements files,
    or () without such files.
    """
    files = [words[1] for words in _pairs(minimum) if words[0] == "-r"]
    if not files:
        return ()
    other_words = [word for words in _pairs(minimum) if words[0] != "-r" for word in words]
    file_steps = (SetupStep((*LINE_BY_LINE, "must", path), folder) for path in files)
    return SetupStep((*PIP, *other_words), folder), *file_steps


def _piece(words: tuple[str, ...], folder: str) -> SetupStep:
    """Return the step that installs a group, or as much of it as possible."""
    pairs = _pairs(words)
    if len(pairs) == 1 and pairs[0][0] != "-r":
        return SetupStep((*PIP, *words), folder, optional=True)
    commands = (
        (*LINE_BY_LINE, "may", pair[1]) if pair[0] == "-r" else (*PIP, *pair)
        for pair in pairs
        if pair[0] != "-c"
    )
    return SetupStep(
        (*PIP, *words),
        folder,
        True,
        tuple(SetupStep(argv, folder, optional=True) for argv in commands),
    )


def _from_folders(
    project: Project,
    siblings: Mapping[str, str],
    required: Sequence[str],
    optional: Mapping[str, tuple[str, ...]],
) -> tuple[list[str], list[str], dict[str, tuple[str, ...]]]:
    """Return the arguments that install siblings from their folders, and `required` and `optional`
    without their names.

    All of them are part of one resolution, and pip would look up the name of a sibling in the
    index.
    """
    extras: dict[str, dict[str, None]] = {folder: {} for folder in siblings.values()}

    def without_siblings(words: Sequence[str]) -> list[str]:
        remaining = []
        for word in words:
            match = re.match(r"([A-Za-z0-9._-]+)\s*(?:\[([\w,. -]+)\])?", word)
            folder = (
                siblings.get(normal(match[1])) if match and word[:1] not in {".", "-"} else None
            )
            if match and folder is not None:
                extras[folder] |= dict.fromkeys((match[2] or "").replace(" ", "").split(","))
            else:
                remaining.append(word)
        return remaining

    required = without_siblings(required)
    remaining_optional = {
        group: tuple(without_siblings(words)) for group, words in optional.items()
    }
    local = []
    for folder, names in extras.items():
        extra_names = ",".join(filter(None, names))
        path = os.path.relpath(folder or ".", project.folder or ".")
        local += ["-e", f"{path}[{extra_names}]" if extra_names else path]
    return local, required, {group: words for group, words in remaining_optional.items() if words}


def _as_locked(project: Project, step: SetupStep) -> tuple[SetupStep, ...]:
    """Return an installation with the versions of the project's lock file, and the step itself as
    its alternative.
    """
    lock = next((name for name in _LOCKS if name in project.files), None)
    if lock is None:
        return (step,)
    read_versions = SetupStep((*LOCKED, lock, _LOCKED_VERSIONS), project.folder, optional=True)
    return read_versions, SetupStep(
        (*PIP, "-c", _LOCKED_VERSIONS, *step.argv[len(PIP) :]), project.folder, instead=(step,)
    )


def _pairs(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Group each option with its value."""
    pairs, index = [], 0
    while index < len(words):
        size = 2 if words[index] in {"-r", "-c", "-e"} else 1
        pairs.append(words[index : index + size])
        index += size
    return pairs


def _each_once(parts: Any) -> list[tuple[str, ...]]:
    """Return the parts without duplicates. Extras of the project itself are merged into one."""
    unique: dict[tuple[str, ...], None] = {}
    extra_names: dict[str, None] = {}
    for part in parts:
        extra = re.fullmatch(r"\.\[(.*)\]", part[1]) if part[0] == "-e" and len(part) > 1 else None
        if extra:
            extra_names |= dict.fromkeys(extra[1].split(","))
        elif part != ("-e", ".") or not extra_names:
            unique[part] = None
    if extra_names:
        unique.pop(("-e", "."), None)
        unique["-e", f".[{','.join(extra_names)}]"] = None
    return list(unique)


def _tests(project: Project, tested_folders: Sequence[str]) -> tuple[str, ...]:
    """Return the test command, () if there are no tests outside `tested_folders`."""
    tested_prefixes = tuple(
        f"{folder.removeprefix(project.folder).strip('/')}/" for folder in tested_folders
    )
    own_project = Project(
        project.folder,
        frozenset(path for path in project.files if not path.startswith(tested_prefixes)),
        project.texts,
    )
    ignored = tuple(f"--ignore={folder.rstrip('/')}" for folder in tested_prefixes)
    if django := django_command(own_project):
        return django
    configures_names = any("python_files" in project.texts.get(name, "") for name in _CONFIG_FILES)
    if own_project.any(*_TEST_FILES):
        uncollected = sorted(
            path
            for path in own_project.files
            if not configures_names and matches(_UNCOLLECTED_TEST_FILES, path)
        )
        options = (
            ("-o", f"python_files={' '.join((*_TEST_FILES, *uncollected))}") if uncollected else ()
        )
        return ("python", "-m", "pytest", *options, *ignored)
    if configures_names:
        return ("python", "-m", "pytest", *ignored) if own_project.any(*_OTHER_TEST_FILES) else ()
    test_files = sorted(
        path
        for path in own_project.files
        if matches(_OTHER_TEST_FILES, path) and not _NOT_TEST_FILES.search(path)
    )
    if test_files:
        return ("python", "-m", "pytest", *test_files[:_MAX_TEST_FILES])
    examples = _doctests(own_project)
    return (*examples, *ignored) if examples else ()


def _doctests(project: Project) -> tuple[str, ...]:
    """Return the command of a project that is configured to run examples in docstrings and texts,
    and has no other tests, or ().
    """
    if not project.any("*.py", "*.rst", "*.md", "*.txt"):
        return ()
    config = "\n".join(text for name, text in project.texts.items() if name in _CONFIG_FILES)
    if configures_pytest(project) and _DOCTEST_OPTIONS.search(config):
        return ("python", "-m", "pytest")
    commands = config + project.texts.get("noxfile.py", "")
    if match := _DOCTEST_OPTIONS.search("\n".join(_PYTEST_LINE.findall(commands))):
        return ("python", "-m", "pytest", match[0])
    return ("python", "-m", "pytest", "--doctest-modules") if _DOCTEST_LINE.search(commands) else ()


def _needs(project: Project, pyproject: Mapping[str, Any]) -> dict[str, str]:
    """Return the Python versions that the project supports, and the one that it pins for
    development.
    """
    poetry = table(pyproject, "tool", "poetry", "dependencies").get("python")
    requires = (
        table(pyproject, "project").get("requires-python")
        or (versions(poetry) if isinstance(poetry, str) else "")
        or project.ini("setup.cfg").get("options", {}).get("python_requires", "")
        or setup_keyword(project, "python_requires")
    )
    pin = re.match(
        r"\s*(?:cpython-)?(\d+\.\d+(?:\.\d+)?)", project.texts.get(".python-version", "")
    )
    return {"python": str(requires or ""), **({"python-pin": pin[1]} if pin else {})}


def requirements_of(project: Project) -> tuple[str, ...]:
    """Return the normalised names of the packages that a Python project or its tests require."""
    pyproject = project.toml("pyproject.toml")
    words = [*strings(table(pyproject, "project").get("dependencies"))]
    declared = groups(project, pyproject, session_words(project, pyproject))
    words += [word for group in declared.values() for word in group]
    words += [
        *table(pyproject, "tool", "poetry", "dependencies"),
        *table(pyproject, "tool", "uv", "sources"),
    ]
    words += [*setup_requirements(project)]
    names = (
        re.match(r"[A-Za-z0-9._-]+", word) for word in words if not word.startswith((".", "-"))
    )
    return tuple(dict.fromkeys(normal(name[0]) for name in names if name))


def _siblings(
    project: Project, pyproject: Mapping[str, Any], projects_by_name: Mapping[str, Project]
) -> dict[str, str]:
    """Return the other projects of the repository that this one depends on: name → folder.

    These are its requirements by name, their requirements in turn, and uv's path sources.
    """
    siblings: dict[str, str] = {}
    pending = [*requirements_of(project)]
    seen_names = {project_name(project)}
    while pending:
        name = pending.pop(0)
        if name in projects_by_name and name not in seen_names:
            siblings[name] = projects_by_name[name].folder
            pending += requirements_of(projects_by_name[name])
        seen_names.add(name)
    for name, source in table(pyproject, "tool", "uv", "sources").items():
        path = table(source).get("path")
        folder = join_inside(project.folder, path) if isinstance(path, str) else None
        subfolder = (folder or "").removeprefix(project.folder).strip("/")
        if (
            folder is not None
            and subfolder
            and project.any(f"/{subfolder}/pyproject.toml", f"/{subfolder}/setup.py")
        ):
            siblings.setdefault(normal(name), folder)
    return {name: folder for name, folder in siblings.items() if folder != project.folder}


def project_name(project: Project) -> str:
    """Return the normalised name of a Python project, '' if it has none."""
    pyproject = project.toml("pyproject.toml")
    name = (
        table(pyproject, "project").get("name")
        or table(pyproject, "tool", "poetry").get("name")
        or setup_keyword(project, "name")
    )
    return (
        normal(name or project.ini("setup.cfg").get("metadata", {}).get("name", ""))
        if isinstance(name, str) or not name
        else ""
    )


def normal(name: str) -> str:
    """Return the normalised name of a package, as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower().strip("-")
