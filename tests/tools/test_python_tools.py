"""Python repositories that declare their test dependencies only in the format of one tool:
`moothall check` sets them up, and their tests pass.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.repos import make_repo

pytestmark = pytest.mark.e2e

_TEST = "import six\n\n\ndef test_six():\n    assert six.PY3\n"
_PROJECT = '[project]\nname = "own"\nversion = "1"\n'
_BUILD = (
    '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
    '[tool.setuptools]\npy-modules = ["own"]\n'
)
_GROUP = '[dependency-groups]\nqa = ["six>=1.16"]\n'
_NOX = (
    "import nox\n\nDEPS = ['six', 'pytest']\n\n\n@nox.session(python=['3.11', '3.12'])\ndef "
    "check(session):\n    session.install(*DEPS)\n    session.run('pytest')\n"
)
TOOLS: Mapping[str, Mapping[str, str]] = {
    "uv": {
        "pyproject.toml": _PROJECT + _GROUP + '[tool.uv]\ndefault-groups = ["qa"]\n',
        "uv.lock": "version = 1\n",
    },
    "pdm": {
        "pyproject.toml": _PROJECT
        + '[tool.pdm]\ndistribution = false\n[tool.pdm.dev-dependencies]\nqa = ["six"]\n',
        "pdm.lock": "",
    },
    "poetry": {
        "pyproject.toml": "[tool.poetry]\npackage-mode = false\n[tool.poetry.dependencies]\npython "
        '= "^3.9"\n'
        '[tool.poetry.group.qa.dependencies]\nsix = "^1.16"\n',
        "poetry.lock": "",
    },
    "tox": {
        "pyproject.toml": _PROJECT + _BUILD,
        "tox.ini": (
            "[tox]\nenvlist = py311\n[base]\ndeps =\n    six\n[testenv]\ndeps =\n    "
            "{[base]deps}\n    pytest\ncommands = pytest\n"
        ),
    },
    "tox.toml": {
        "pyproject.toml": _PROJECT + _BUILD + "[project.optional-dependencies]\nqa = ['six']\n",
        "tox.toml": "[env_run_base]\nextras = ['qa']\ncommands = [['pytest']]\n",
    },
    "nox": {"pyproject.toml": _PROJECT + _BUILD, "noxfile.py": _NOX},
    "hatch": {
        "pyproject.toml": _PROJECT + _BUILD,
        "hatch.toml": (
            '[envs.qa]\ndependencies = ["six"]\n[envs.qa.scripts]\nrun = "pytest {args}"\n'
        ),
    },
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One data directory for all, so that the interpreter's environment is created once."""
    return tmp_path_factory.mktemp("data")


@pytest.mark.parametrize("tool", TOOLS)
def test_test_dependencies_declared_for_one_tool_are_installed(
    tmp_path: Path, data: Path, tool: str
) -> None:
    repo = make_repo(tmp_path / "repo", {**TOOLS[tool], "own.py": "", "tests/test_own.py": _TEST})
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("MOOTHALL_")
    }
    completed = subprocess.run(
        [sys.executable, "-m", "moothall", "check", str(repo.path), "--json"],
        env={**inherited, "MOOTHALL_DATA_DIR": str(data)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    (row,) = json.loads(completed.stdout)["checks"]
    assert (row["check"], row["green"], row["red"]) == ("tests", 1, [])
