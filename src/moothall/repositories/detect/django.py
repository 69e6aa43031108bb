"""How a Django project without pytest runs its tests. Pure."""

from __future__ import annotations

import re

from moothall.repositories.detect.project import Project, table

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
