from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.sandbox_runtime.cases import findings, is_linter


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (
            "src/a.py:3:1: F401 `os` imported but unused\nFound 1 error.\n",
            ["src/a.py: F401 `os` imported but unused"],
        ),
        (
            "a.py:12: error: Name 'x' is not defined  [name-defined]\nFound 1 error in 1 file\n",
            ["a.py: error: Name 'x' is not defined [name-defined]"],
        ),
        (
            "src/a.ts(12,5): error TS2304: Cannot find name 'x'.\n",
            ["src/a.ts: error TS2304: Cannot find name 'x'."],
        ),
        (
            (
                "\n/workspace/src/a.js\n  12:5  error  'x' is not defined  no-undef\n  13:1  "
                "warning  "
                "odd  rule\n\n✖ 2 problems\n"
            ),
            ["src/a.js: error 'x' is not defined no-undef", "src/a.js: warning odd rule"],
        ),
        ("# example.org/m\n./a.go:7:2: unreachable code\n", ["a.go: unreachable code"]),
        (
            "warning: unused variable: `x`\n --> src/lib.rs:3:9\n  |\n",
            ["src/lib.rs: warning: unused variable: `x`"],
        ),
        ("would reformat src/a.py\n1 file would be reformatted\n", ["src/a.py: is not formatted"]),
        ("All checks passed!\n", []),
    ],
)
def test_findings_have_no_line_numbers(output: str, expected: list[str]) -> None:
    assert findings(output) == expected


def test_a_finding_on_another_line_is_the_same() -> None:
    assert findings("a.py:3:1: F401 x, first seen on line 3") == findings(
        "a.py:9:1: F401 x, first seen on line 9"
    )


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("ruff", "check", "."), True),
        (("/env/bin/python", "-m", "mypy", "src"), True),
        (("npx", "eslint", "."), True),
        (("uv", "run", "pyright"), True),
        (("go", "vet", "./..."), True),
        (("cargo", "clippy"), True),
        (("go", "test", "./..."), False),
        (("make", "lint"), False),
        (("python", "-m", "pytest", "mypy"), False),
        ((), False),
    ],
)
def test_linters_are_recognised(argv: tuple[str, ...], *, expected: bool) -> None:
    assert is_linter(argv) is expected


@given(st.text(max_size=500) | st.text(alphabet="ab.py:1 ->()\n error:", max_size=500))
def test_any_output_can_be_read(output: str) -> None:
    assert all(": " in line for line in findings(output))
