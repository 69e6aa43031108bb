from __future__ import annotations

import json
from pathlib import Path

import pytest

from moothall.config import WorkspaceSettings
from moothall.domain.repository import Profile
from moothall.errors import RepositoryError
from moothall.repositories.clone import TrustedClone
from moothall.repositories.patch_rules import matches
from moothall.repositories.profile import Commands, make_profile, parse_config_file, read_profile
from support.repos import SAMPLE, make_sample

PIP = (
    "/env/bin/python",
    "-m",
    "pip",
    "install",
    "--quiet",
    "--no-input",
    "--disable-pip-version-check",
)


def profile_of(files: dict[str, str], registered: Commands | None = None) -> Profile:
    return make_profile({path: str(hash(text)) for path, text in files.items()}, files, registered)


async def test_the_sample_is_a_python_project_with_pytest(tmp_path: Path) -> None:
    repo = make_sample(tmp_path / "s")
    clone = TrustedClone(tmp_path / "repos" / "s.git", WorkspaceSettings())
    profile = await read_profile(clone, await clone.fetch(str(repo.path), "HEAD"))
    assert profile.setup == ((*PIP, "pytest"),)
    assert profile.checks == {"tests": ("python", "-m", "pytest")}
    assert profile.known_failures == ()
    sha = await clone.fetch(str(repo.path), repo.commit({"README.md": "other"}))
    assert (await read_profile(clone, sha)).lock_digest == profile.lock_digest
    sha = await clone.fetch(str(repo.path), repo.commit({"requirements.txt": "attrs\n"}))
    changed = await read_profile(clone, sha)
    assert changed.lock_digest != profile.lock_digest
    assert changed.setup[0] == (*PIP, "pytest", "-r", "requirements.txt")


def test_tests_and_the_files_that_control_them_are_protected() -> None:
    protected = profile_of(dict(SAMPLE)).protected
    for path in (
        "tests/data/x.json",
        "tests/test_utils.py",
        "src/pkg/test_a.py",
        "pkg/a_test.go",
        "ui/a.test.js",
        "conftest.py",
        "src/conftest.py",
        "pytest.ini",
        "pyproject.toml",
        "setup.cfg",
        "tox.ini",
        ".moothall.toml",
        "src/sitecustomize.py",
        "a.pth",
    ):
        assert matches(protected, path), path
    for path in ("src/utils.py", "README.md", "src/pyproject.toml.md"):
        assert not matches(protected, path), path


def test_python_dependencies_are_read_from_all_usual_files() -> None:
    profile = profile_of(
        {
            "a.py": "",
            "test_a.py": "",
            "requirements.txt": "x",
            "requirements/dev.txt": "y",
            "pyproject.toml": (
                '[build-system]\nrequires = ["hatchling"]\n[project]\ndependencies = '
                '["attrs>=25", "rich[extra] ; os_name == \'posix\'"]\n'
                '[project.optional-dependencies]\ntest = ["hypothesis"]\ndocs = ["sphinx"]\n'
                '[dependency-groups]\ndev = ["mypy", {include-group = "loop"}]\nloop = '
                '[{include-group = "dev"}, "attrs>=25"]\n'
                "[tool.ruff]\nline-length = 100\n"
            ),
        }
    )
    all_requirements = (
        "pytest",
        "-r",
        "requirements.txt",
        "hypothesis",
        "mypy",
        "attrs>=25",
        "-r",
        "requirements/dev.txt",
        "-e",
        ".[test]",
    )
    assert profile.setup == ((*PIP, *all_requirements), (*PIP, "ruff"))
    required_step, *pieces = profile.steps[0].instead
    assert required_step.argv == (*PIP, "pytest", "-e", ".")
    assert not required_step.optional
    assert all(piece.optional for piece in pieces)
    assert profile.checks["lint"] == ("python", "-m", "ruff", "check", ".")
    assert profile.advisory == ("lint",)


def test_python_without_tests_has_an_environment_but_no_check() -> None:
    profile = profile_of({"a.py": ""})
    assert profile.checks == {}
    assert profile.setup == ((*PIP, "pytest"),)


@pytest.mark.parametrize(
    ("files", "checks", "setup"),
    [
        (
            {
                "package.json": json.dumps({"scripts": {"test": "node --test"}}),
                "package-lock.json": "{}",
            },
            {"tests": ("npm", "test")},
            ("npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"),
        ),
        (
            {"go.mod": "module x", "x_test.go": ""},
            {"tests": ("go", "test", "./...")},
            ("go", "mod", "download"),
        ),
        ({"Cargo.toml": "", "src/lib.rs": ""}, {"tests": ("cargo", "test")}, ("cargo", "fetch")),
        ({"Makefile": "all:\n\ntest: all\n\ttrue\n"}, {"tests": ("make", "test")}, None),
        ({"Makefile": "test := x\n"}, {}, None),
        (
            {
                "package.json": json.dumps(
                    {"scripts": {"test": 'echo "Error: no test specified" && exit 1'}}
                )
            },
            {},
            None,
        ),
        ({"package.json": "[]"}, {}, None),
        ({"README.md": "nothing"}, {}, None),
    ],
)
def test_other_languages_are_detected(
    files: dict[str, str], checks: dict[str, tuple[str, ...]], setup: tuple[str, ...] | None
) -> None:
    profile = profile_of(files)
    assert profile.checks == checks
    assert profile.setup[:1] == ((setup,) if setup else ())


def test_the_repositorys_config_file_overrides_detection_and_the_registry_overrides_it() -> None:
    config_text = (
        'setup = ["pip install -r ci.txt", ["make", "env"]]\nprotected = ["golden/**", '
        '"!tests/data/**"]\n'
        'known_failures = ["tests/test_a.py::test_b"]\n[checks]\ntests = "make check ARGS=\'-q '
        'x\'"\nlint = ["ruff", "check"]\n'
    )
    files = dict(SAMPLE) | {".moothall.toml": config_text}
    profile = profile_of(files)
    assert profile.setup == (("pip", "install", "-r", "ci.txt"), ("make", "env"))
    assert profile.checks == {"tests": ("make", "check", "ARGS=-q x"), "lint": ("ruff", "check")}
    assert profile.known_failures == ("tests/test_a.py::test_b",)
    assert matches(profile.protected, "golden/x")
    assert not matches(profile.protected, "tests/data/x")
    over = profile_of(
        files, Commands.model_validate({"checks": {"tests": "tox"}, "protected": ["more/**"]})
    )
    assert over.checks == {"tests": ("tox",)}
    assert over.setup == profile.setup
    assert matches(over.protected, "more/x")
    assert matches(over.protected, "golden/x")
    partly = profile_of(dict(SAMPLE) | {".moothall.toml": '[checks]\ntests = "true"\n'})
    assert partly.setup == ((*PIP, "pytest"),)


def test_checks_may_be_advisory_and_run_in_a_folder() -> None:
    config_text = (
        'advisory = ["lint", "gone"]\n[checks]\ntests = "make"\nlint = "make lint"\n[folders]\n'
        'tests = "sub/x"\n'
    )
    profile = profile_of(dict(SAMPLE) | {".moothall.toml": config_text})
    assert profile.advisory == ("lint",)
    assert profile.folders == {"tests": "sub/x"}
    for folder in ("/etc", "../up", ""):
        with pytest.raises(RepositoryError, match=r"line 2: folders\.tests"):
            parse_config_file(f'[folders]\ntests = "{folder}"\n')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('setup = ["a"]\nchecks = = 1\n', "line 2"),
        ('setup = ["a"]\n\nchekcs = {}\n', r"line 3: chekcs: .*the keys are setup, checks"),
        ("[checks]\nlint = 'x'\ntests = 5\n", r"line 3: checks\.tests"),
        ("[checks]\nTests = 'x'\n", r"line 2: checks\.Tests.*lower-case"),
        ("setup = ['unclosed \"quote']\n", r"line 1: setup\.0.*words"),
        ("[checks]\ntests = []\n", r"line 2: checks\.tests"),
        ("[checks]\ntests = '  '\n", r"line 2: checks\.tests"),
        ('protected = "tests"\n', r"line 1: protected"),
        pytest.param("setup = " + "[" * 60_000, "is not TOML", id="a nest of brackets"),
    ],
)
def test_an_invalid_config_file_is_an_error_with_its_line(text: str, message: str) -> None:
    with pytest.raises(RepositoryError, match=message):
        parse_config_file(text)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.py": "", "pyproject.toml": "= broken"}, r"pyproject\.toml is not TOML: .*line 1"),
        ({"package.json": "{"}, r"package\.json is not JSON.*line 1"),
        (
            {"pyproject.toml": '[project]\ndependencies = ["--index-url=http://evil"]\n'},
            "is not a requirement",
        ),
        ({"pyproject.toml": "[project]\ndependencies = [5]\n"}, "'5' is not a requirement"),
    ],
)
def test_broken_project_files_are_named(files: dict[str, str], message: str) -> None:
    with pytest.raises(RepositoryError, match=message):
        profile_of(files)
