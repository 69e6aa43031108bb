"""Projects with a history: a bug, its fix with a test, a refactoring, and documentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support.repos import Repo, make_repo

_FIX = (
    "Fix the discount: percent is a share of the price (#12)\n\n10 percent off 200 has to be "
    "180.\n\nFixes: #12\nSigned-off-by: Ada <ada@localhost>"
)


@dataclass(frozen=True)
class Project:
    """A project: its first commit, a bug fix with its test, a refactoring, and a change of the
    documentation.
    """

    program: str
    base: Mapping[str, str]
    source: str
    right_source: str
    wrong_source: str
    test: str
    tests: str
    refactored: str
    hidden: str


_PY = (
    "def discount(price, percent):\n    return price\n\n\ndef total(prices):\n    result = 0\n    "
    "for price in prices:\n        result += price\n    return result\n"
)
_PY_OLD = (
    "from shop import discount, total\n\n\ndef test_nothing():\n    assert discount(10, 0) == 10\n"
    "\n\ndef test_total():\n    assert total([1, 2]) == 3\n"
)
_GO = (
    "package shop\n\nfunc Discount(price, percent int) int { return price }\n\nfunc Total(prices "
    "[]int) int {\n\tsum := 0\n\tfor _, price := range prices {\n\t\tsum += price\n\t}\n\treturn "
    "sum\n}\n"
)
_GO_OLD = (
    'package shop\n\nimport "testing"\n\nfunc TestNothing(t *testing.T) {\n\tif Discount(10, 0) '
    '!= 10 {\n\t\tt.Fatal("changed")\n\t}\n}\n'
)

PROJECTS = {
    "python": Project(
        program="python3",
        base={
            "shop.py": _PY,
            "tests/test_shop.py": _PY_OLD,
            "pyproject.toml": (
                '[project]\nname = "shop"\nversion = "0.1.0"\n\n[tool.pytest.ini_options]\n'
                'pythonpath = ["."]\n'
            ),
            ".gitignore": "__pycache__/\n*.egg-info/\n",
        },
        source="shop.py",
        right_source=_PY.replace("return price\n\n", "return price - price * percent // 100\n\n"),
        wrong_source=_PY.replace("return price\n\n", "return price - percent\n\n"),
        test="tests/test_shop.py",
        tests=_PY_OLD
        + "\n\ndef test_percent_of_the_price():\n    assert discount(200, 10) == 180\n",
        refactored="    result = 0\n    for price in prices:\n        result += price\n    return "
        "result\n",
        hidden="tests/test_shop.py::test_percent_of_the_price",
    ),
    "go": Project(
        program="go",
        base={
            "go.mod": "module example.org/shop\n\ngo 1.19\n",
            "shop.go": _GO,
            "shop_test.go": _GO_OLD,
        },
        source="shop.go",
        right_source=_GO.replace("{ return price }", "{ return price - price*percent/100 }"),
        wrong_source=_GO.replace("{ return price }", "{ return price - percent }"),
        test="shop_test.go",
        tests=_GO_OLD
        + (
            "\nfunc TestPercentOfThePrice(t *testing.T) {\n\tif got := Discount(200, 10); got != "
            "180 {\n\t\tt.Fatal(got)\n\t}\n}\n"
        ),
        refactored="\tsum := 0\n\tfor _, price := range prices {\n\t\tsum += price\n\t}\n"
        "\treturn sum\n",
        hidden="example.org/shop::TestPercentOfThePrice",
    ),
}


def make_history(project: Project, path: Path) -> Repo:
    repo = make_repo(path, project.base)
    repo.commit({project.source: project.right_source, project.test: project.tests}, _FIX)
    repo.commit(
        {
            project.source: project.right_source.replace(
                project.refactored, project.refactored.replace("price", "item")
            )
        },
        "Name what is summed up in total()",
    )
    repo.commit({"README.md": "# Shop\n"}, "Say in the README what the shop is")
    return repo
