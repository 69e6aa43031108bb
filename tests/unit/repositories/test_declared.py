"""The packages that a repository declares, by the text of its files."""

from __future__ import annotations

import pytest

from moothall.repositories.profile import declared_packages, find_package_lists


@pytest.mark.parametrize(
    ("path", "text", "names"),
    [
        (
            "pyproject.toml",
            (
                '[project]\nname = "own"\ndependencies = ["Num_Py>=1", "a[b]"]\n'
                '[project.optional-dependencies]\ntest = ["x.y"]'
            ),
            "a num-py x-y",
        ),
        (
            "pyproject.toml",
            ('[dependency-groups]\ndev = ["a>1", {include-group = "other"}]\nother = ["b"]'),
            "a b",
        ),
        (
            "pyproject.toml",
            (
                '[tool.poetry]\nname = "own"\npackages = [{include = "own"}]\n'
                '[tool.poetry.dependencies]\npython = "^3"\na = {version = "1"}\n'
                '[tool.poetry.group.dev.dependencies]\nb = "*"'
            ),
            "a b python",
        ),
        (
            "pyproject.toml",
            (
                '[build-system]\nrequires = ["setuptools"]\n[tool.setuptools]\npackages = ["own"]\n'
                '[tool.hatch.envs.t]\nextra-dependencies = ["a"]'
            ),
            "a setuptools",
        ),
        ("pyproject.toml", "not toml [", ""),
        (
            "sub/pyproject.toml",
            ('[tool.pdm.dev-dependencies]\ntest = ["a"]\n[tool.uv]\ndev-dependencies = ["b"]'),
            "a b",
        ),
        ("requirements.txt", "# c\nA==1\n-r other.txt\n-e git+https://host/x.git#egg=b\n", "a b"),
        ("requirements/test.in", "a\n", "a"),
        (
            "environment.yml",
            ("name: own\ndependencies:\n  - a=1.2\n  - pip:\n    - b\n"),
            "a b dependencies name pip",
        ),
        (
            "setup.cfg",
            (
                "[metadata]\nname = own\n[options]\ninstall_requires =\n  a>1\n  b\npackages = own\n"  # noqa: E501 - a line of embedded text
                "[options.extras_require]\ntest = c"
            ),
            "a b c",
        ),
        (
            "tox.ini",
            ("[testenv]\ndeps =\n  py39: a\n  -rreq.txt\n  b>1\ncommands = pytest own"),
            "a b",
        ),
        (
            "setup.py",
            (
                'REQUIRED = ["a"]\nsetup(name="own", packages=["own"], install_requires=REQUIRED + '
                '["b"], extras_require={"x": ["c"]})'
            ),
            "a b c",
        ),
        ("noxfile.py", 'def f(session):\n    session.install("-r", "x.txt", "a>1")\n', "a"),
        ("Pipfile", '[packages]\na = "*"\n[dev-packages]\nb = "*"', "a b"),
    ],
)
def test_every_declaration_of_a_dependency_is_read(path: str, text: str, names: str) -> None:
    assert set(names.split()) - {"dependencies", "name"} <= set(declared_packages({path: text}, ()))
    assert "own" not in declared_packages({path: text}, ()) or path == "environment.yml"


def test_set_up_commands_declare_the_packages_that_they_install() -> None:
    setup = [
        ("/env/bin/python", "-m", "pip", "install", "--quiet", "pytest", "num_py>=1", "-e", "."),
        ("make", "own"),
    ]
    assert declared_packages({}, setup) == ("num-py", "pytest")


def test_lists_of_packages_are_found_in_folders_too() -> None:
    files = (
        "app.py",
        "sub/requirements-dev.txt",
        "requirements/all.txt",
        "environment.yaml",
        "test_requirements.txt",
        "a.txt",
    )
    assert set(find_package_lists(files)) == {*files} - {"app.py", "a.txt"}
