"""How a Python project is set up and tested, including Django projects without pytest. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from moothall.domain.repository import SetupStep
from moothall.repositories.detect.builds import Built, python_built
from moothall.repositories.detect.groups import extras, groups, plugins, requirement_files, runtime
from moothall.repositories.detect.literals import setup_keyword, setup_requirements
from moothall.repositories.detect.project import FoundProject, Project, join_inside, strings, table
from moothall.repositories.detect.requirements import versions
from moothall.repositories.patch_rules import matches
from moothall.sandbox_runtime.checks import PLUGINS

_TEST = re.compile(r"(?:django-admin(?:\.py)?|-m[ \"',]+django)[ \"',]+test\b(?P<words>[^\n\]]*)")
"""Django's test command in the files of tox and nox."""
_SETTINGS = re.compile(
    r"DJANGO_SETTINGS_MODULE[\"']?\s*[=:,]\s*[\"']?(?P<module>\w+(?:\.\w+)+|\w+)"
)
_WORD = re.compile(r"--?[\w-]+(?:=[\w./:-]+)?|[\w./-]+")
_SESSIONS = ("tox.ini", "setup.cfg", "pyproject.toml", "tox.toml", "noxfile.py")
_PARTS_OF_NO_PROJECT = re.compile(
    r"(?:^|/)(?:docs?|examples?|samples?|demos?|templates?|node_modules|\..+)(?:/|$)", re.IGNORECASE
)
_DEEPEST = 2


def configures_pytest(project: Project) -> bool:
    """Whether a file configures pytest."""
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
    """Return the files that start the tests of such a command, which are protected."""
    return tuple(word for word in command if word in {"manage.py", "runtests.py"})


def run_in(command: tuple[str, ...]) -> str:
    """Return the folder in which such a command runs, or '' for the project's own."""
    return next(
        (word.removeprefix("--chdir=") for word in command if word.startswith("--chdir=")), ""
    )


def _manage(project: Project) -> tuple[str, ...]:
    """Return the command of a project with Django's manage.py, at its top or in a folder below."""
    if "manage.py" in project.files and "django" in project.texts.get("manage.py", ""):
        return ("python", "manage.py", "test")
    below = sorted(
        (
            folder
            for path in project.files
            if path.endswith("/manage.py")
            and (folder := path.rpartition("/")[0])
            and not _PARTS_OF_NO_PROJECT.search(folder)
            and folder.count("/") < _DEEPEST
            and project.any(f"/{folder}/*/settings.py", f"/{folder}/*/settings/*.py")
        ),
        key=lambda folder: (folder.count("/"), folder),
    )
    return ("env", f"--chdir={below[0]}", "python", "manage.py", "test") if below else ()


def _sessions(project: Project) -> tuple[str, ...]:
    """Return the command of tox or nox if it is Django's own or a runtests.py, or ()."""
    said = "\n".join(project.texts.get(name, "") for name in _SESSIONS)
    settings = _SETTINGS.search(said)
    env = ("env", f"DJANGO_SETTINGS_MODULE={settings['module']}") if settings else ()
    if re.search(r"\bpytest\b", said):
        return ()
    if found := _TEST.search(said):
        words = [
            word for word in _WORD.findall(re.sub(r"\{.*?\}", "", found["words"])) if word != "--"
        ]
        return (*env, "python", "-m", "django", "test", *words)
    if "runtests.py" in project.files and "runtests.py" in said:
        return (*env, "python", "runtests.py")
    return ()


ENV_PYTHON = "/env/bin/python"
PIP = (ENV_PYTHON, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check")
LOCKED = (ENV_PYTHON, "-I", f"{PLUGINS}/moothall_locked.py")
"""Reads the versions of a lock file into another file."""
LINE_BY_LINE = (ENV_PYTHON, "-I", f"{PLUGINS}/moothall_requirements.py")
"""Installs as much of a requirements file as possible, and names the rest."""
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
_READ = (*(name for name in TEXTS if name != "manage.py"), *_LOCKS)
_VERSIONS = "/env/locked.txt"
_TESTS = ("test_*.py", "*_test.py")
_OTHER_TESTS = (
    "/test.py",
    "/tests.py",
    "/tests/*.py",
    "/test/*.py",
    "/*/tests.py",
    "/*/tests/*.py",
    "/src/*/tests/*.py",
)
_WHOLE = ("/test/test.py", "/test/tests.py", "/tests/test.py", "/tests/tests.py")
"""Tests that pytest would pass over, for it finds others beside them."""
_EXAMPLES = re.compile(
    r"--doctest-modules|--doctest-plus|--xdoctest(?:-modules)?|--doctest-(?:glob|extension)[= "
    r"][\"']?[\w.*]+"
)
"""Options of pytest that make it run examples as tests."""
_PYTEST_LINE = re.compile(r"(?m)^.*\bpytest\b.*$")
_DOCTEST_LINE = re.compile(r"-m doctest\b|\bwith-doctest\b")
_NOT_TESTS = re.compile(
    r"(?:^|/)(?:__init__|conftest|utils?|helpers?|common|base|settings|_.*)\.py$"
)
_MOST_FILES = 50
_ASKS_GIT = re.compile(
    r"hatch[-_]vcs|setuptools[-_]scm|versioningit|\bpbr\b|dunamai|dynamic[-_]versioning|setuptools[-_]git|versioneer|vcversioner|setupmeta"
    r"|source\s*=\s*[\"'](?:scm|vcs)|git[-_ "
    r"]describe|[\"']git[\"']|flit[-_]scm|milksnake|incremental|miniver"
)


def python(
    project: Project, below: Sequence[str], named: Mapping[str, Project]
) -> FoundProject | None:
    """Return what is found in a Python project, None where it is none.

    `below` are folders below this one that have checks of their own; `named` are all projects of
    the repository by name.
    """
    pyproject = project.toml("pyproject.toml")
    if not pyproject and not project.any("*.py"):
        return None
    lint = (
        "ruff" in table(pyproject, "tool")
        or "ruff.toml" in project.files
        or ".ruff.toml" in project.files
    )
    tests = _tests(project, below)
    if (
        below
        and not tests
        and not any(name in project.files for name in _READ)
        and not requirement_files(project)
    ):
        return None  # all that is Python here belongs to one of the folders
    local = _siblings(project, pyproject, named)
    siblings = list(dict.fromkeys(local.values()))
    checks: dict[str, tuple[str, ...]] = {}
    if tests:
        checks["tests"] = tests
    if lint:
        checks["lint"] = ("python", "-m", "ruff", "check", ".")
    installed = "build-system" in pyproject or "setup.py" in project.files
    history = any(
        _ASKS_GIT.search(project.texts.get(name, ""))
        for name in ("pyproject.toml", "setup.py", "setup.cfg")
    )
    versioned = project_name(project) if history else ""
    built = (
        python_built(project, pyproject, PIP, versioned=versioned) if installed else None
    ) or Built()
    return FoundProject(
        steps=(
            *_steps(project, pyproject, local, run_in(tests)),
            *built.steps,
            *((SetupStep((*PIP, "ruff"), project.folder, optional=True),) if lint else ()),
        ),
        checks=checks,
        advisory=("lint",) if lint else (),
        protected=(
            *(("ruff.toml", ".ruff.toml") if lint else ()),
            *own_runner_files(tests),
            *built.protected,
        ),
        reads=(
            *(path for path in (*_READ, *requirement_files(project)) if path in project.files),
            *built.reads,
        ),
        needs={**_needs(project, pyproject), **built.needs},
        builds=built.builds,
        depends=tuple(siblings),
        history=history,
    )


def _steps(
    project: Project, pyproject: Mapping[str, Any], siblings: Mapping[str, str], inner: str
) -> tuple[SetupStep, ...]:
    """Return one installation of everything, so that one resolution sees all of it; piece by piece
    if
    that fails.

    `siblings` are other projects of the repository, name → folder; `inner` is the folder of the
    tests, '' for its own.
    """
    tool = table(pyproject, "tool")
    installable = (
        "build-system" in pyproject or "setup.py" in project.files or "setup.cfg" in project.files
    ) and table(tool, "uv").get("package") is not False
    own_extras = extras(project, pyproject)
    # In place, so that tests import the candidate's code and never a copy of the base's.
    own = (
        ["-e", "."]
        if installable and tool.get("poetry", {}).get("package-mode") is not False
        else []
    )
    needed = [] if own else runtime(pyproject, project.path("pyproject.toml"))
    wanted = groups(project, pyproject)
    if "requirements.txt" in project.files and not own:
        needed += ["-r", "requirements.txt"]
    elif "requirements.txt" in project.files:
        wanted = {"requirements.txt": ("-r", "requirements.txt"), **wanted}
    if inner and f"{inner}/requirements.txt" in project.files:
        needed += ["-r", f"{inner}/requirements.txt"]
    config = "\n".join(text for name, text in project.texts.items() if name in _CONFIGURED)
    if missing := [
        name for name in plugins(config) if not any(name in words for words in wanted.values())
    ]:
        wanted["pytest's options"] = tuple(missing)
    local, needed, wanted = _from_folders(project, siblings, needed, wanted)
    must = (*local, "pytest", *needed, *own)
    if own and own_extras:
        wanted = {**wanted, f"extras {','.join(own_extras)}": ("-e", f".[{','.join(own_extras)}]")}
    folder = project.folder
    least = SetupStep((*PIP, *must), folder, instead=_line_by_line(must, folder))
    if not wanted:
        return _as_locked(project, least)
    words = _each_once(
        word for part in wanted.values() for word in _pairs(part) if word != ("pytest",)
    )
    with_extras = own and any(part[0] == "-e" and part[1].startswith(".[") for part in words)
    whole = [word for part in words for word in part]
    pieces = tuple(_piece(part, folder) for part in wanted.values())
    # pip takes the project once: with extras where it has some
    all_of_it = (*PIP, *local, "pytest", *needed, *whole, *(() if with_extras else own))
    return _as_locked(project, SetupStep(all_of_it, folder, instead=(least, *pieces)))


def _line_by_line(must: tuple[str, ...], folder: str) -> tuple[SetupStep, ...]:
    """Return steps that install the same without the development tools of its requirements files,
    or () without such files.
    """
    files = [words[1] for words in _pairs(must) if words[0] == "-r"]
    if not files:
        return ()
    rest = [word for words in _pairs(must) if words[0] != "-r" for word in words]
    each = (SetupStep((*LINE_BY_LINE, "must", path), folder) for path in files)
    return SetupStep((*PIP, *rest), folder), *each


def _piece(words: tuple[str, ...], folder: str) -> SetupStep:
    """Return the step that installs a group, or as much of it as possible."""
    pairs = _pairs(words)
    if len(pairs) == 1 and pairs[0][0] != "-r":
        return SetupStep((*PIP, *words), folder, optional=True)
    each = (
        (*LINE_BY_LINE, "may", pair[1]) if pair[0] == "-r" else (*PIP, *pair)
        for pair in pairs
        if pair[0] != "-c"
    )
    return SetupStep(
        (*PIP, *words), folder, True, tuple(SetupStep(argv, folder, optional=True) for argv in each)
    )


def _from_folders(
    project: Project,
    siblings: Mapping[str, str],
    needed: Sequence[str],
    wanted: Mapping[str, tuple[str, ...]],
) -> tuple[list[str], list[str], dict[str, tuple[str, ...]]]:
    """Return the words that install siblings from their folders, and `needed` and `wanted` without
    their names.

    All are part of one resolution, and pip would look up a sibling's name in the index.
    """
    extras: dict[str, dict[str, None]] = {folder: {} for folder in siblings.values()}

    def others(words: Sequence[str]) -> list[str]:
        left = []
        for word in words:
            named = re.match(r"([A-Za-z0-9._-]+)\s*(?:\[([\w,. -]+)\])?", word)
            folder = (
                siblings.get(normal(named[1])) if named and word[:1] not in {".", "-"} else None
            )
            if named and folder is not None:
                extras[folder] |= dict.fromkeys((named[2] or "").replace(" ", "").split(","))
            else:
                left.append(word)
        return left

    needed = others(needed)
    rest = {where: tuple(others(words)) for where, words in wanted.items()}
    local = []
    for folder, names in extras.items():
        named = ",".join(filter(None, names))
        path = os.path.relpath(folder or ".", project.folder or ".")
        local += ["-e", f"{path}[{named}]" if named else path]
    return local, needed, {where: words for where, words in rest.items() if words}


def _as_locked(project: Project, step: SetupStep) -> tuple[SetupStep, ...]:
    """Return an installation with the versions that the project's lock file fixes; the step itself
    where these cannot be had.
    """
    lock = next((name for name in _LOCKS if name in project.files), None)
    if lock is None:
        return (step,)
    read = SetupStep((*LOCKED, lock, _VERSIONS), project.folder, optional=True)
    return read, SetupStep(
        (*PIP, "-c", _VERSIONS, *step.argv[len(PIP) :]), project.folder, instead=(step,)
    )


_CONFIGURED = ("pyproject.toml", "setup.cfg", "tox.ini", "pytest.ini", ".pytest.ini")


def _pairs(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return words with each option and its value in one."""
    found, at = [], 0
    while at < len(words):
        size = 2 if words[at] in {"-r", "-c", "-e"} else 1
        found.append(words[at : at + size])
        at += size
    return found


def _each_once(parts: Any) -> list[tuple[str, ...]]:
    """Return parts without what stands there twice; several extras of the project itself become
    one.
    """
    found: dict[tuple[str, ...], None] = {}
    own: dict[str, None] = {}
    for part in parts:
        extra = re.fullmatch(r"\.\[(.*)\]", part[1]) if part[0] == "-e" and len(part) > 1 else None
        if extra:
            own |= dict.fromkeys(extra[1].split(","))
        elif part != ("-e", ".") or not own:
            found[part] = None
    if own:
        found.pop(("-e", "."), None)
        found["-e", f".[{','.join(own)}]"] = None
    return list(found)


def _tests(project: Project, below: Sequence[str]) -> tuple[str, ...]:
    """Return the command of the tests, () where there are none outside the folders of `below`."""
    inside = tuple(f"{folder.removeprefix(project.folder).strip('/')}/" for folder in below)
    mine = Project(
        project.folder,
        frozenset(path for path in project.files if not path.startswith(inside)),
        project.texts,
    )
    ignored = tuple(f"--ignore={folder.rstrip('/')}" for folder in inside)
    if own := django_command(mine):
        return own
    said = any("python_files" in project.texts.get(name, "") for name in _CONFIGURED)
    if mine.any(*_TESTS):
        whole = sorted(path for path in mine.files if not said and matches(_WHOLE, path))
        more = ("-o", f"python_files={' '.join((*_TESTS, *whole))}") if whole else ()
        return ("python", "-m", "pytest", *more, *ignored)
    if said:
        return ("python", "-m", "pytest", *ignored) if mine.any(*_OTHER_TESTS) else ()
    others = sorted(
        path for path in mine.files if matches(_OTHER_TESTS, path) and not _NOT_TESTS.search(path)
    )
    if others:
        return ("python", "-m", "pytest", *others[:_MOST_FILES])
    examples = _doctests(mine)
    return (*examples, *ignored) if examples else ()


def _doctests(project: Project) -> tuple[str, ...]:
    """Return the command of a project whose only tests are examples in docstrings and texts, if
    configured, or ().
    """
    if not project.any("*.py", "*.rst", "*.md", "*.txt"):
        return ()
    config = "\n".join(text for name, text in project.texts.items() if name in _CONFIGURED)
    if configures_pytest(project) and _EXAMPLES.search(config):
        return ("python", "-m", "pytest")
    commands = config + project.texts.get("noxfile.py", "")
    if found := _EXAMPLES.search("\n".join(_PYTEST_LINE.findall(commands))):
        return ("python", "-m", "pytest", found[0])
    return ("python", "-m", "pytest", "--doctest-modules") if _DOCTEST_LINE.search(commands) else ()


def _needs(project: Project, pyproject: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of Python that the project runs on, and the one that it names for those
    who work on it.
    """
    poetry = table(pyproject, "tool", "poetry", "dependencies").get("python")
    said = (
        table(pyproject, "project").get("requires-python")
        or (versions(poetry) if isinstance(poetry, str) else "")
        or project.ini("setup.cfg").get("options", {}).get("python_requires", "")
        or setup_keyword(project, "python_requires")
    )
    pin = re.match(
        r"\s*(?:cpython-)?(\d+\.\d+(?:\.\d+)?)", project.texts.get(".python-version", "")
    )
    return {"python": str(said or ""), **({"python-pin": pin[1]} if pin else {})}


def requirements_of(project: Project) -> tuple[str, ...]:
    """Return the normalised names of the packages that a Python project requires, for itself or its
    tests.
    """
    pyproject = project.toml("pyproject.toml")
    words = [*strings(table(pyproject, "project").get("dependencies"))]
    words += [word for part in groups(project, pyproject).values() for word in part]
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
    project: Project, pyproject: Mapping[str, Any], named: Mapping[str, Project]
) -> dict[str, str]:
    """Return the other projects of the repository that this one depends on, name → folder.

    These are its requirements by name, their requirements in turn, and uv's path sources.
    """
    found: dict[str, str] = {}
    waiting = [*requirements_of(project)]
    seen = {project_name(project)}
    while waiting:
        name = waiting.pop(0)
        if name in named and name not in seen:
            found[name] = named[name].folder
            waiting += requirements_of(named[name])
        seen.add(name)
    for name, source in table(pyproject, "tool", "uv", "sources").items():
        path = table(source).get("path")
        folder = join_inside(project.folder, path) if isinstance(path, str) else None
        own = (folder or "").removeprefix(project.folder).strip("/")
        if folder is not None and own and project.any(f"/{own}/pyproject.toml", f"/{own}/setup.py"):
            found.setdefault(normal(name), folder)
    return {name: folder for name, folder in found.items() if folder != project.folder}


def project_name(project: Project) -> str:
    """Return the normal name of a Python project, '' where none is said."""
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
    """Return the name of a package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower().strip("-")
