from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest

from moothall.domain.repository import Profile, SetupStep, checks_near
from moothall.errors import RepositoryError
from moothall.repositories.detect import Detected, detect
from moothall.repositories.detect.python import PIP
from moothall.repositories.detect.requirements import versions

TESTED = {"pkg/__init__.py": "", "tests/test_a.py": ""}


def detect_all(files: Mapping[str, str], limit: int = 20) -> Detected:
    return detect(files, files, limit)


def install_words(files: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words of the first installation after pip's own."""
    first = detect_all({**TESTED, **files}).steps[0].argv
    assert first[: len(PIP)] == PIP
    return first[len(PIP) :]


def commands(steps: tuple[SetupStep, ...]) -> Iterator[str]:
    """Return every command of a set-up, including fallbacks."""
    for step in steps:
        yield " ".join(step.argv)
        yield from commands(step.instead)


BUILD = '[build-system]\nrequires = ["hatchling"]\n[project]\nname = "x"\n'


@pytest.mark.parametrize(
    "lock", ["uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "Pipfile.lock"]
)
def test_packages_are_constrained_by_the_lock_file_if_its_versions_are_available(
    lock: str,
) -> None:
    files = {**TESTED, "pyproject.toml": f'{BUILD}[dependency-groups]\ntest = ["responses"]\n'}
    (free,) = detect_all(files).steps
    read, locked = detect_all({**files, lock: ""}).steps
    assert read.argv[-2:] == (lock, "/env/locked.txt")
    assert read.optional
    assert locked.argv == (*PIP, "-c", "/env/locked.txt", *free.argv[len(PIP) :])
    assert locked.instead == (free,)


@pytest.mark.parametrize(
    ("files", "installed"),
    [
        (
            {
                "pyproject.toml": BUILD
                + ('[dependency-groups]\nTest_s = ["never"]\ntests = ["responses>=0.2"]\n')
            },
            {"responses>=0.2", "-e"},
        ),
        (
            {
                "pyproject.toml": '[build-system]\nrequires = ["poetry-core"]\n[tool.poetry]\n'
                'name = "x"\n'
                '[tool.poetry.dependencies]\npython = "^3.8"\n'
                '[tool.poetry.group.test.dependencies]\npytest = "^7.2"\n'
                'pyyaml = {version = "~6.0", markers = "os_name == \'posix\'"}\n'
                '[tool.poetry.dev-dependencies]\nfreezegun = "*"\nblack = "^23"\n'
            },
            {"pytest>=7.2,<8", "pyyaml>=6.0,<6.1 ; (os_name == 'posix')", "freezegun", "-e", "."},
        ),
        (
            {"pyproject.toml": BUILD + ('[tool.pdm.dev-dependencies]\ntest = ["pytest-mock"]\n')},
            {"pytest-mock"},
        ),
        (
            {"pyproject.toml": BUILD + ('[tool.hatch.envs.test]\ndependencies = ["tomli"]\n')},
            {"tomli"},
        ),
        ({"pyproject.toml": BUILD + '[tool.uv]\ndev-dependencies = ["anyio"]\n'}, {"anyio"}),
        (
            {
                "setup.py": (
                    "from setuptools import setup\nsetup(name='x', tests_require=['mock'], "
                    "python_requires='>=3.8')\n"
                ),
                "tox.ini": (
                    "[testenv]\ndeps =\n    pytest>=6\n    -r{toxinidir}/requirements/ci.txt\n    "
                    "py27: enum34\n    {[base]deps}\nextras = tests\n"
                ),
                "requirements/ci.txt": "",
            },
            {"mock", "pytest>=6", "requirements/ci.txt", ".[tests]"},
        ),
        (
            {
                "setup.py": "",
                "tox.toml": (
                    '[env_run_base]\ndeps = ["pytest", "time-machine"]\nextras = ["dev"]\n'
                ),
            },
            {"time-machine", ".[dev]"},
        ),
        (
            {
                "setup.py": "",
                "noxfile.py": "import nox\n@nox.session\ndef tests(session):\n    "
                "session.install('-r', "
                "'reqs.txt', 'pytest-httpbin')\n    session.run('pytest')\n"
                "@nox.session\ndef docs(session):\n    session.install('sphinx')\n",
            },
            {"pytest-httpbin"},
        ),
        (
            {
                "setup.cfg": (
                    "[options.extras_require]\ntesting =\n    x\n[tool:pytest]\naddopts = --cov=x -n "
                    "auto\n"
                ),
                "setup.py": "",
            },
            {".[testing]", "pytest-cov", "pytest-xdist"},
        ),
        (
            {
                "requirements.txt": "",
                "requirements/dev.txt": "",
                "requirements/docs.txt": "",
                "requirements/tests.txt": "",
                "setup.py": "",
            },
            {"requirements/tests.txt", "requirements.txt"},
        ),
    ],
)
def test_test_dependencies_of_python_projects_are_detected(
    files: dict[str, str], installed: set[str]
) -> None:
    requirements = install_words(files)
    assert installed <= set(requirements)
    assert not {
        "enum34",
        "sphinx",
        "black>=23,<24",
        "requirements/docs.txt",
        "requirements/dev.txt",
        "never",
    } & set(requirements)


PLAIN = '[project]\nname = "x"\n'
QA = PLAIN + '[dependency-groups]\nqa = ["six"]\ndocs = ["never"]\n'
EXTRA = BUILD + "[project.optional-dependencies]\nqa = ['six']\n"


def session(body: str, head: str = "def tests(session)") -> str:
    return (
        f"import nox\nDEPS = ['six']\n@nox.session\n{head}:\n    {body}\n@nox.session\ndef "
        "docs(session):\n    session.install('never')\n"
    )


@pytest.mark.parametrize(
    "files",
    [
        {"pyproject.toml": QA + "[tool.uv]\ndefault-groups = ['qa', 'docs']\n"},
        {"pyproject.toml": QA + "[tool.uv]\ndefault-groups = 'all'\n"},
        {"pyproject.toml": QA.replace('"six"', '"six", "pytest"')},
        {"pyproject.toml": PLAIN + "[tool.pdm.dev-dependencies]\nqa = ['six']\ndoc = ['never']\n"},
        {
            "pyproject.toml": PLAIN
            + (
                "[tool.poetry.group.qa.dependencies]\nsix = '*'\n[tool.poetry.group.o]\noptional = "
                "true\ndependencies = {never = '*'}\n"
            )
        },
        {
            "pyproject.toml": PLAIN
            + (
                "[tool.hatch.envs.default]\ndependencies = ['six']\n[tool.hatch.envs.docs]\n"
                "dependencies = ['never']\n"
            )
        },
        {"pyproject.toml": QA + "[tool.hatch.envs.test]\ndependency-groups = ['qa']\n"},
        {
            "pyproject.toml": QA
            + (
                "[tool.hatch.envs.base]\ndependencies = ['six']\n[tool.hatch.envs.test]\ntemplate = "
                "'base'\n"
            )
        },
        {
            "pyproject.toml": PLAIN,
            "hatch.toml": (
                "[envs.qa]\ndependencies = ['six']\nscripts = {run = 'pytest'}\n[envs.lint]\n"
                "dependencies = ['never']\n"
            ),
        },
        {
            "tox.ini": (
                "[base]\ndeps = six\n[testenv]\ndeps = {[base]deps}\n[testenv:docs]\ndeps = never\n"
            )
        },
        {
            "tox.ini": (
                "[testenv]\ncommands = pytest\n[testenv:py{310,311}]\ndeps = six\n[testenv:py27]\n"
                "deps = never\n"
            )
        },
        {
            "tox.ini": (
                "[testenv:check]\ndeps = six\ncommands = python -m pytest\n[testenv:docs]\ndeps = "
                "never\ncommands = pytest docs\n"
            )
        },
        {
            "tox.ini": (
                "[testenv]\ndeps =\n    py3{10,11}: six\n    py27,lint: never\n    !py: never\n"
            )
        },
        {
            "tox.ini": (
                "[tox]\nenvlist = py{310,311,312,313,314}-django{42,52,main}\n[testenv]\ndeps =\n    "
                "django42: never\n    django52: six\n    djangomain: never\n    !django52: never\n"
            )
        },
        {
            "tox.ini": (
                "[tox]\nenv_list =\n    a{1,2}-{sqlite,mysql}\n    docs\n[testenv]\ndeps =\n    a1: "
                "never\n    a2-sqlite: six\n    mysql: never\n    docs: never\n"
            )
        },
        {
            "setup.cfg": (
                "[tox:tox]\nenvlist = py27-old,py3-new,lint,pypy3-odd\n[tox:testenv]\ndeps =\n    "
                "new: six\n    old,odd,lint: never\n"
            )
        },
        {
            "tox.ini": (
                "[tox]\nenvlist = lint,docs\n[testenv]\ndeps =\n    py310,py311,py312,py313: six\n    "
                "lint: never\n"
            )
        },
        {"tox.ini": "[testenv]\ndependency_groups =\n    qa\n", "pyproject.toml": QA},
        {
            "tox.ini": (
                "[testenv]\ndependency_groups =\n    tests: qa\n    mypy: docs\n"
                "[testenv:py311-tests]\ndeps = never\n"
            ),
            "pyproject.toml": QA,
        },
        {"tox.toml": "[env.test]\ndeps = ['six']\n[env.docs]\ndeps = ['never']\n"},
        {"noxfile.py": session("session.install('--group', 'qa')"), "pyproject.toml": QA},
        {
            "noxfile.py": session(
                "session.run_install('uv', 'sync', '--group=qa', '--python', 'never')"
            ),
            "pyproject.toml": QA,
        },
        {
            "noxfile.py": session(
                "session.install(*nox.project.dependency_groups(PYPROJECT, 'qa'))"
            ),
            "pyproject.toml": QA,
        },
        {"noxfile.py": session("session.install(*DEPS)")},
        {"noxfile.py": session("s.install('six')", "def tests(s: nox.Session) -> None")},
        {
            "noxfile.py": session(
                "session.install('six'); session.run('pytest')", "def check(session)"
            )
        },
        {
            "noxfile.py": session("session.install('six')").replace(
                "session\ndef tests", "session(name='tests')\ndef run"
            )
        },
        {"Pipfile": "[dev-packages]\nsix = '*'\n"},
    ],
)
def test_requirements_in_the_form_of_one_tool_are_installed(files: dict[str, str]) -> None:
    requirements = install_words({"setup.py": "", **files})
    assert "six" in requirements
    assert not {"never", "qa", "docs", "-e .[docs]"} & set(requirements)


@pytest.mark.parametrize(
    "files",
    [
        {"pyproject.toml": EXTRA, "noxfile.py": session("session.install('-e', '.[qa]')")},
        {"pyproject.toml": EXTRA, "tox.ini": "[testenv]\nextras = qa\n"},
        {"pyproject.toml": EXTRA + "[tool.hatch.envs.default]\nfeatures = ['qa']\n"},
        {
            "setup.py": (
                "from setuptools import setup\nEXTRAS = {'test': ['six']}\n"
                "setup(extras_require=EXTRAS)\n"
            )
        },
    ],
)
def test_the_projects_own_test_extra_is_installed(files: dict[str, str]) -> None:
    assert install_words(files)[-2:] in {("-e", ".[qa]"), ("-e", ".[test]")}


def test_a_noxfile_is_never_run_and_a_broken_one_is_not_an_error() -> None:
    assert install_words(
        {"setup.py": "raise SystemExit(1)", "noxfile.py": "def tests(session:\n"}
    ) == (
        "pytest",
        "-e",
        ".",
    )


def test_the_fallback_requires_project_and_pytest_and_makes_groups_optional() -> None:
    (install,) = detect_all(
        {
            **TESTED,
            "pyproject.toml": BUILD + '[dependency-groups]\ntest = ["a"]\ndev = ["b", "tox"]\n',
        }
    ).steps
    assert install.argv == (*PIP, "pytest", "a", "b", "-e", ".")
    required_step, *groups = install.instead
    assert (required_step.argv, required_step.optional) == ((*PIP, "pytest", "-e", "."), False)
    assert [(step.argv[-1], step.optional) for step in groups] == [("a", True), ("b", True)]


def test_each_part_of_a_group_or_file_that_cannot_be_installed_whole_is_tried() -> None:
    files = {
        "requirements.txt": "",
        "requirements-dev.txt": "",
        "pyproject.toml": "[dependency-groups]\ntest = ['a', 'b']\n",
    }
    (install,) = detect_all({**TESTED, **files}).steps
    required_step, *pieces = install.instead
    assert required_step.argv == (*PIP, "pytest", "-r", "requirements.txt")
    assert [" ".join(step.argv[-2:]) for step in required_step.instead] == [
        f"{PIP[-1]} pytest",
        "must requirements.txt",
    ]
    tried = [
        " ".join(step.argv).rpartition("--disable-pip-version-check ")[2]
        for piece in pieces
        for step in piece.instead
    ]
    assert tried[:2] == ["a", "b"]
    assert tried[-1].endswith("moothall_requirements.py may requirements-dev.txt")
    assert all(step.optional for piece in pieces for step in piece.instead)


@pytest.mark.parametrize(
    ("poetry", "specifier"),
    [
        ("^1.2.3", ">=1.2.3,<2"),
        ("^0.2", ">=0.2,<0.3"),
        ("~1.2", ">=1.2,<1.3"),
        ("~1", ">=1,<2"),
        (">=1, <3", ">=1,<3"),
        ("1.2.*", "==1.2.*"),
        ("1.5", "==1.5"),
        ("*", ""),
        ("^1 || ^2.1", ">=2.1,<3"),
    ],
)
def test_version_constraints_of_poetry_are_translated(poetry: str, specifier: str) -> None:
    assert versions(poetry) == specifier


@pytest.mark.parametrize(
    ("files", "needs"),
    [
        (
            {"pyproject.toml": '[project]\nrequires-python = ">=3.9,<3.13"\n'},
            {"python": ">=3.9,<3.13"},
        ),
        (
            {"pyproject.toml": '[tool.poetry.dependencies]\npython = "^3.8"\n'},
            {"python": ">=3.8,<4"},
        ),
        ({"setup.cfg": "[options]\npython_requires = >=3.7\n"}, {"python": ">=3.7"}),
        (
            {"setup.py": "import setuptools\nsetuptools.setup(python_requires='>=3.6')\n"},
            {"python": ">=3.6"},
        ),
        ({".python-version": "3.12.1\n"}, {"python": "", "python-pin": "3.12.1"}),
    ],
)
def test_the_required_python_version_is_detected(
    files: dict[str, str], needs: dict[str, str]
) -> None:
    assert detect_all({**TESTED, **files}).needs == needs


def test_required_versions_of_other_toolchains_are_detected() -> None:
    scripts = {"scripts": {"test": "node --test"}, "engines": {"node": ">=18"}}
    assert detect_all({"package.json": json.dumps(scripts)}).needs == {"node": ">=18"}
    assert detect_all({"go.mod": "module x\n\ngo 1.22.3\n", "x_test.go": ""}).needs == {
        "go": "1.22.3"
    }
    rust = {
        "Cargo.toml": '[package]\nname = "x"\n',
        "src/lib.rs": "",
        "rust-toolchain.toml": '[toolchain]\nchannel = "nightly"\n',
    }
    assert detect_all(rust).needs == {"rust": "nightly"}


@pytest.mark.parametrize(
    "tool", ["hatch-vcs", "setuptools_scm>=8", "versioningit", "pbr", "poetry-dynamic-versioning"]
)
def test_versions_from_tags_require_the_history(tool: str) -> None:
    assert detect_all(
        {**TESTED, "pyproject.toml": f'[build-system]\nrequires = ["{tool}"]\n'}
    ).history
    assert not detect_all(
        {**TESTED, "pyproject.toml": '[build-system]\nrequires = ["flit-core"]\n'}
    ).history


@pytest.mark.parametrize(
    ("scripts", "tests"),
    [
        ({"test": "mocha"}, ("npm", "test")),
        ({"pretest": "npm run build", "build": "tsc", "test": "jest"}, ("npm", "test")),
        (
            {
                "pretest": "npm run lint",
                "lint": "eslint .",
                "test": "npm run tests-only",
                "tests-only": "tape test/*.js",
                "posttest": "npx npm@'>=10.2' audit",
            },
            ("npm", "run", "--ignore-scripts", "tests-only"),
        ),
        ({"test": "xo && ava && tsd"}, ("npm", "exec", "--offline", "--call", "ava")),
        (
            {"test": "pnpm lint && vitest run --typecheck", "lint": "eslint ."},
            ("npm", "exec", "--offline", "--call", "vitest run --typecheck"),
        ),
        ({"pretest": "eslint .", "test": "node --test"}, ("npm", "test", "--ignore-scripts")),
        (
            {"test": "npm run lint && npm run unit", "lint": "standard", "unit": "tap"},
            ("npm", "run", "--ignore-scripts", "unit"),
        ),
    ],
)
def test_the_tests_of_a_node_package_are_detected_without_its_linters(
    scripts: dict[str, str], tests: tuple[str, ...]
) -> None:
    assert detect_all({"package.json": json.dumps({"scripts": scripts})}).checks["tests"] == tests


def test_a_lint_script_is_an_advisory_check() -> None:
    lint = detect_all(
        {"package.json": json.dumps({"scripts": {"test": "ava", "lint": "eslint ."}})}
    )
    assert lint.checks["lint"] == ("npm", "run", "--ignore-scripts", "--silent", "lint")
    assert lint.advisory == ("lint",)


@pytest.mark.parametrize(
    ("files", "first"),
    [
        ({"package-lock.json": "{}"}, "npm ci"),
        ({}, "npm install"),
        (
            {"pnpm-lock.yaml": "lockfileVersion: '6.0'\n"},
            ("npm install --global --prefix=/env --no-audit --no-fund --loglevel=error pnpm@8"),
        ),
        (
            {"yarn.lock": ""},
            (
                "npm install --global --prefix=/env --no-audit --no-fund --loglevel=error "
                "yarn@1.22.22"
            ),
        ),
        (
            {
                "yarn.lock": "",
                ".yarnrc.yml": "yarnPath: .yarn/releases/yarn-4.cjs\n",
                ".yarn/releases/yarn-4.cjs": "",
            },
            (
                "sh -c mkdir -p /env/bin && printf %s '#!/bin/sh\nexec node "
                '"/workspace/.yarn/releases/yarn-4.cjs"'
            ),
        ),
    ],
)
def test_the_package_manager_follows_from_the_lock_file(files: dict[str, str], first: str) -> None:
    package = {"package.json": json.dumps({"scripts": {"test": "ava"}})}
    command_lines = list(commands(detect_all({**package, **files}).steps))
    assert command_lines[0].startswith(first)
    assert command_lines[-1].endswith("--ignore-scripts"), "the fallback, if its own command fails"


@pytest.mark.parametrize(
    ("named", "installed"),
    [
        ({"packageManager": "pnpm@10.0.0-rc.1"}, "pnpm@10.0.0-rc.1"),
        ({"packageManager": "pnpm@9"}, "pnpm@9"),
        (
            {
                "devEngines": {
                    "packageManager": {"name": "pnpm", "version": "^10.2.0", "onFail": "download"}
                }
            },
            "pnpm@10.2.0",
        ),
        (
            {"devEngines": {"packageManager": {"name": "yarn", "version": "1.22.19"}}},
            "yarn@1.22.19",
        ),
    ],
)
def test_the_pinned_version_of_the_package_manager_is_installed(
    named: dict[str, object], installed: str
) -> None:
    package = {"scripts": {"test": "ava"}, **named}
    assert detect_all({"package.json": json.dumps(package)}).steps[0].argv[-1] == installed


def test_the_pinned_package_manager_is_installed_for_scripts_that_call_corepack() -> None:
    package = {"scripts": {"test": "corepack pnpm run a"}, "packageManager": "pnpm@9.1.2"}
    assert detect_all({"package.json": json.dumps(package)}).steps[-1].argv[-3:] == (
        "install",
        "--global",
        "pnpm@9.1.2",
    )


def test_npm_runs_the_test_script_of_a_package_that_names_another_manager() -> None:
    package = {
        "scripts": {"test": "pnpm run a"},
        "devEngines": {"packageManager": {"name": "pnpm", "onFail": "error"}},
    }
    assert detect_all({"package.json": json.dumps(package)}).checks["tests"] == (
        "npm",
        "test",
        "--force",
    )


def test_the_named_package_manager_takes_precedence() -> None:
    named = {"scripts": {"test": "ava"}, "packageManager": "pnpm@9.1.2+sha512.abc"}
    assert any(
        "pnpm@9.1.2" in command_line
        for command_line in commands(
            detect_all({"package.json": json.dumps(named), "yarn.lock": ""}).steps
        )
    )
    berry = {"package.json": json.dumps(named | {"packageManager": "yarn@4.5.3"})}
    (first,) = (
        command_line
        for command_line in commands(detect_all(berry).steps[1:2])
        if command_line.endswith("--no-immutable")
    )  # there is no lock file to respect
    assert first.startswith("env YARN_NODE_LINKER")


MONOREPO = {
    "README.md": "",
    "api/pyproject.toml": (
        '[project]\nname = "my.api"\ndependencies = ["my-core>=1"]\n[build-system]\nrequires = '
        '["hatchling"]\n'
    ),
    "api/test_api.py": "",
    "libs/core/pyproject.toml": (
        '[project]\nname = "my-core"\n[build-system]\nrequires = ["hatchling"]\n'
    ),
    "libs/core/tests/test_core.py": "",
    "web/package.json": json.dumps({"scripts": {"test": "node --test"}}),
    "service/go.mod": "module x\n",
    "service/a_test.go": "",
    "tests/fixtures/p/setup.py": "",
    "node_modules/x/package.json": "{}",
}


def test_each_of_several_projects_has_a_check_in_its_folder() -> None:
    detection = detect_all(MONOREPO)
    folders = {
        "tests-api": "api",
        "tests-core": "libs/core",
        "tests-web": "web",
        "tests-service": "service",
    }
    assert detection.folders == folders
    assert set(detection.checks) == set(folders)
    assert detection.depends == {"api": ("libs/core",)}
    assert {step.folder for step in detection.steps} == set(folders.values())
    assert all(step.optional for step in detection.steps), (
        "a member that cannot be set up does not affect the others"
    )
    api = next(step for step in detection.steps if step.folder == "api")
    assert api.argv[len(PIP) :] == ("-e", "../libs/core", "pytest", "-e", ".")


UV = {
    "pyproject.toml": (
        "[project]\nname = 'root'\ndependencies = ['lib-a[x]>=1', 'attrs', 'kit']\n"
        "[tool.uv.sources]\nlib-a = {workspace = true}\n"
        "kit = {path = 'tools/kit'}\n[tool.uv.workspace]\nmembers = ['packages/*']\n"
    ),
    "packages/a/pyproject.toml": (
        "[project]\nname = 'lib_a'\ndependencies = ['lib.b>=1']\n[build-system]\nrequires = []\n"
    ),
    "packages/b/setup.py": (
        "from setuptools import setup\nsetup(name='lib-b', install_requires=['lib-c'])\n"
    ),
    "packages/c/setup.cfg": "",
    "packages/c/setup.py": (
        "from setuptools import setup\nsetup(name='lib-c', install_requires=['lib-a'])\n"
    ),
    "tools/kit/pyproject.toml": "[project]\nname = 'kit'\n",
    "tests/test_a.py": "",
}


def test_local_projects_are_installed_from_their_folders() -> None:
    argv = detect_all(UV).steps[0].argv[len(PIP) :]
    local = tuple(
        word
        for name in ("packages/a[x]", "packages/b", "packages/c", "tools/kit")
        for word in ("-e", name)
    )
    assert argv == (*local, "pytest", "attrs")
    assert detect_all(UV).depends == {"": ("packages/a", "packages/b", "packages/c", "tools/kit")}


def test_their_number_is_bounded_and_shown() -> None:
    limited = detect_all(MONOREPO, 1)
    assert len(limited.checks) == 1
    assert "more projects have no check of their own" in limited.notes[0]


def test_only_checks_near_a_change_are_selected() -> None:
    detection = detect_all(MONOREPO)
    profile = Profile(checks=detection.checks, folders=detection.folders, depends=detection.depends)
    assert checks_near(profile, ["api/x.py"]) == ("tests-api",)
    assert checks_near(profile, ["libs/core/x.py"]) == ("tests-api", "tests-core")
    assert checks_near(profile, ["README.md"]) == tuple(detection.checks)
    assert checks_near(profile, []) == ()
    assert checks_near(Profile(checks={"tests": ("x",)}), ["any/where"]) == ("tests",)


def test_the_check_of_a_single_project_in_a_folder_keeps_its_plain_name() -> None:
    detection = detect_all({"python/setup.py": "", "python/tests/test_a.py": "", "README.md": ""})
    assert detection.checks == {"tests": ("python", "-m", "pytest")}
    assert detection.folders == {"tests": "python"}
    assert not detection.steps[0].optional


def test_the_root_check_excludes_projects_with_their_own_check() -> None:
    detection = detect_all(
        {**TESTED, "setup.py": "", "plugin/setup.py": "", "plugin/test_b.py": ""}
    )
    assert detection.checks == {
        "tests": ("python", "-m", "pytest", "--ignore=plugin"),
        "tests-plugin": ("python", "-m", "pytest"),
    }


def test_members_of_workspaces_are_installed_at_the_root() -> None:
    node = detect_all(
        {
            "package.json": json.dumps({"workspaces": ["packages/*"]}),
            "package-lock.json": "",
            "packages/a/package.json": json.dumps({"scripts": {"test": "ava"}}),
            "packages/b/package.json": json.dumps({"scripts": {"test": "ava"}}),
        }
    )
    assert set(node.checks) == {"tests-a", "tests-b"}
    assert [step.folder for step in node.steps] == [""]
    cargo = detect_all(
        {
            "Cargo.toml": '[workspace]\nmembers = ["a"]\n',
            "a/Cargo.toml": '[package]\nname = "a"\n',
            "a/src/lib.rs": "",
        }
    )
    assert cargo.checks == {"tests": ("cargo", "test", "--workspace")}
    assert any("cargo test --workspace --no-run" in command for command in commands(cargo.steps)), (
        "members may have dependencies"
    )


@pytest.mark.parametrize(
    ("posttest", "arguments"), [("npx npm audit", ("--ignore-scripts",)), ("node tidy.js", ())]
)
def test_a_posttest_script_that_needs_the_network_is_skipped(
    posttest: str, arguments: tuple[str, ...]
) -> None:
    files = {
        "package.json": json.dumps(
            {"workspaces": ["packages/*"], "scripts": {"test": "npm test --workspaces"}}
        ),
        "packages/a/package.json": json.dumps({"scripts": {"test": "tape", "posttest": posttest}}),
        "examples/b/package.json": json.dumps(
            {"scripts": {"test": "tape", "posttest": "eslint ."}}
        ),
    }
    assert detect_all(files).checks["tests"] == ("npm", "test", *arguments)


def test_test_files_that_pytest_would_not_discover_are_named() -> None:
    assert detect_all({"slug/__init__.py": "", "test.py": "", "setup.py": ""}).checks["tests"] == (
        "python",
        "-m",
        "pytest",
        "test.py",
    )


def test_a_suite_file_beside_files_that_pytest_discovers_is_run_too() -> None:
    files = {"setup.py": "", "test/test.py": "", "test/test_more.py": ""}
    options = ("-o", "python_files=test_*.py *_test.py test/test.py")
    assert detect_all(files).checks["tests"] == ("python", "-m", "pytest", *options)
    assert detect_all({**files, "tox.ini": "[pytest]\npython_files = check_*.py\n"}).checks[
        "tests"
    ] == (
        "python",
        "-m",
        "pytest",
    )


MANAGE = "from django.core.management import execute_from_command_line\n"
WEB = {"requirements.txt": "Django\n", "app1/tests.py": "", "web/settings.py": ""}


@pytest.mark.parametrize(
    ("files", "tests"),
    [
        ({**WEB, "manage.py": MANAGE}, "python manage.py test"),
        (
            {**WEB, "manage.py": ("from flask_script import Manager\n")},
            "python -m pytest app1/tests.py",
        ),
        (
            {
                **WEB,
                "manage.py": MANAGE,
                "pytest.ini": ("[pytest]\nDJANGO_SETTINGS_MODULE = web.settings\n"),
            },
            "python -m pytest app1/tests.py",
        ),
        ({**WEB, "manage.py": MANAGE, "app1/conftest.py": ""}, "python -m pytest app1/tests.py"),
        (
            {
                "requirements.txt": "",
                "backend/manage.py": "",
                "backend/web/settings.py": "",
                "backend/app/test_a.py": "",
            },
            "env --chdir=backend python manage.py test",
        ),
        (
            {
                "setup.py": "",
                "tests/test_a.py": "",
                "tox.ini": (
                    "[testenv]\nsetenv =\n    DJANGO_SETTINGS_MODULE = tests.settings\ncommands = "
                    "django-admin test --pythonpath=. {posargs}\n"
                ),
            },
            "env DJANGO_SETTINGS_MODULE=tests.settings python -m django test --pythonpath=.",
        ),
        (
            {
                "setup.py": "",
                "tests/test_a.py": "",
                "noxfile.py": (
                    "session.run('python', '-m', 'django', 'test', '--settings=tests.settings')\n"
                ),
            },
            "python -m django test --settings=tests.settings",
        ),
        (
            {
                "setup.py": "",
                "tests/test_a.py": "",
                "runtests.py": "",
                "tox.ini": ("[testenv]\ncommands = python runtests.py\n"),
            },
            "python runtests.py",
        ),
    ],
)
def test_django_without_pytest_uses_its_own_runner(files: dict[str, str], tests: str) -> None:
    assert " ".join(detect_all(files).checks["tests"]) == tests


def test_requirements_of_django_in_a_folder_are_installed_from_there() -> None:
    inner = {
        "backend/manage.py": "",
        "backend/web/settings.py": "",
        "backend/app/tests.py": "",
        "backend/requirements.txt": "",
    }
    assert detect_all({"README.md": "", **inner}).steps[0].argv[-3:] == (
        "pytest",
        "-r",
        "backend/requirements.txt",
    )
    assert "backend/requirements.txt" in detect_all(inner).reads


def test_the_script_that_starts_djangos_tests_is_protected() -> None:
    assert "manage.py" in detect_all({**WEB, "manage.py": MANAGE}).protected


@pytest.mark.parametrize(
    ("files", "tests"),
    [
        ({"pytest.ini": "[pytest]\naddopts = --doctest-modules\n"}, "python -m pytest"),
        (
            {"pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--doctest-glob=*.md'\n"},
            "python -m pytest",
        ),
        ({"setup.cfg": "[tool:pytest]\naddopts = --xdoctest\n"}, "python -m pytest"),
        (
            {"tox.ini": "[testenv]\ncommands = pytest --doctest-modules thing.py\n"},
            "python -m pytest --doctest-modules",
        ),
        (
            {"noxfile.py": "session.run('pytest', '--doctest-glob=*.rst')\n"},
            "python -m pytest --doctest-glob=*.rst",
        ),
        (
            {"tox.ini": "[testenv]\ncommands = python -m doctest thing.py\n"},
            "python -m pytest --doctest-modules",
        ),
        ({"pytest.ini": "[pytest]\naddopts = -q\n"}, ""),
    ],
)
def test_doctests_run_if_the_project_configures_them(files: dict[str, str], tests: str) -> None:
    assert " ".join(detect_all({"thing.py": "", **files}).checks.get("tests", ())) == tests


EXTENSION = (
    "from setuptools import setup, Extension\nsetup(ext_modules=[Extension('x', ['x.c'])])\n"
)
MATURIN = '[build-system]\nrequires = ["maturin>=1"]\nbuild-backend = "maturin"\n'


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({"setup.py": EXTENSION, "x.c": ""}, "python setup.py build_ext --inplace --force"),
        (
            {
                "pyproject.toml": (
                    "[build-system]\nrequires = ['setuptools']\n[[tool.setuptools.ext-modules]]\nname "
                    "= 'x'\n"
                ),
                "x.c": "",
            },
            "python -c 'import setuptools; setuptools.setup()' build_ext --inplace --force",
        ),
        (
            {
                "pyproject.toml": MATURIN + ("[tool.maturin]\npython-source = 'python'\n"),
                "Cargo.toml": "",
                "x.c": "",
            },
            ("maturin develop --offline --skip-install"),
        ),
        ({"pyproject.toml": MATURIN, "Cargo.toml": "", "x.c": ""}, "--target /tmp/moothall-site ."),
        (
            {
                "package.json": json.dumps({"scripts": {"test": "node --test"}}),
                "binding.gyp": "",
                "x.c": "",
            },
            "node-gyp configure build",
        ),
    ],
)
def test_compiled_code_is_rebuilt(files: dict[str, str], command: str) -> None:
    python = {} if "package.json" in files else {"tests/test_a.py": ""}
    detection = detect_all({**python, **files})
    (build,) = detection.builds
    assert command in build.argv[-1]
    assert any(command in step.argv[-1] and step.optional for step in detection.steps), (
        "set-up tries it"
    )
    assert "*.c" in build.sources
    assert "x.c" in detection.reads, "another commit with other sources is set up anew"


def test_a_workspace_member_is_built_after_the_root_is_installed() -> None:
    member = {"main": "dist/index.js", "scripts": {"test": "mocha", "build": "tsc"}}
    files = {
        "package.json": json.dumps({"workspaces": ["packages/*"]}),
        "packages/a/package.json": json.dumps(member),
    }
    detection = detect_all(files)
    assert [step.folder for step in detection.steps] == ["", "packages/a"]
    assert "npm run --silent build" in detection.steps[-1].argv[-1]
    assert [build.folder for build in detection.builds] == ["packages/a"]


def test_meson_builds_with_its_installed_requirements() -> None:
    meson = "[build-system]\nrequires = ['meson-python', 'cython']\nbuild-backend = 'mesonpy'\n"
    detection = detect_all({**TESTED, "pyproject.toml": meson, "meson.build": ""})
    needed, install, tried = detection.steps[-3:]
    assert "ninja" in tried.argv[-1]
    assert {"meson", "ninja", "cython"} <= set(needed.argv)
    assert install.argv[-4:] == ("--no-build-isolation", "--no-deps", "-e", ".")
    assert "meson.build" in detection.protected


@pytest.mark.parametrize(
    ("package", "built"),
    [
        ({"main": "dist/index.js", "scripts": {"test": "mocha", "build": "tsc"}}, True),
        (
            {
                "exports": {".": {"require": "./lib/a.cjs"}},
                "scripts": {"test": "node --test", "build": "rollup -c"},
            },
            True,
        ),
        (
            {
                "main": "dist/index.js",
                "scripts": {"test": "npm run build && mocha", "build": "tsc"},
            },
            False,
        ),
        ({"main": "dist/index.js", "scripts": {"test": "vitest run", "build": "tsc"}}, False),
        ({"main": "src/index.js", "scripts": {"test": "mocha", "build": "tsc"}}, False),
        ({"main": "dist/index.js", "scripts": {"test": "mocha"}}, False),
    ],
)
def test_files_read_by_the_tests_of_a_node_package_are_rebuilt(
    package: dict[str, object],
    built: bool,  # noqa: FBT001
) -> None:
    builds = detect_all({"package.json": json.dumps(package), "src/index.ts": ""}).builds
    assert [build.sources for build in builds] == ([()] if built else [])


@pytest.mark.parametrize(
    "text",
    [
        "[project]\ndependencies = ['--index-url=http://x']\n",
        "[dependency-groups]\ntest = ['-r /etc/passwd']\n",
    ],
)
def test_a_requirement_that_looks_like_an_option_is_refused(text: str) -> None:
    with pytest.raises(RepositoryError, match="is not a requirement"):
        detect_all({**TESTED, "pyproject.toml": text})
