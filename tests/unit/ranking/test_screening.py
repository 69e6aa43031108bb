from __future__ import annotations

import pytest

from moothall.ranking.screening import find_suspicious_lines


def diff(path: str, *lines: str) -> str:
    body = "".join(f"+{line}\n" for line in lines)
    return (
        f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n"
        f"{body}"
    )


@pytest.mark.parametrize(
    ("path", "line", "reason"),
    [
        ("a.py", "import pytest", "imports a test runner"),
        ("a.py", "frame = sys._getframe(1)", "reaches the interpreter's state"),
        ("a.py", "os._exit(0)", "ends the process or acts at its end"),
        ("a.py", "def __eq__(self, other):", "changes what is equal or of which type"),
        ("a.py", "value = open('tests/test_a.py')", "names a file of the tests"),
        ("a.js", "process.exit(0)", "ends the process or reads how it is run"),
        ("a.ts", "const assert = require('node:assert');", "loads a part of the test runner"),
        ("a.js", "test.only('x', () => {});", "names a test runner"),
        ("a.ts", "  it('works', run);", "names a test runner"),
        ("a.go", "os.Exit(0)", "acts on the process, its caller or its build"),
        ("src/lib.rs", "std::process::exit(0);", "acts on the process, or differs under test"),
    ],
)
def test_a_suspicious_line_is_reported(path: str, line: str, reason: str) -> None:
    assert find_suspicious_lines(diff(path, "x = 1", line), ()) == (f"{path}:2: {reason}",)
    assert find_suspicious_lines(diff(path, line), (path,)) == ()


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("a.py", "return price - price * percent // 100"),
        ("a.py", "# import pytest"),
        ("a.js", "// require('picomatch')"),
        ("a.js", "const match = require('picomatch');"),
        ("a.js", "return regex.test(utils.basename(input));"),
        ("a.ts", "const first = it.next();"),
        ("a.go", 'import "strings"'),
        ("README.md", "Run os._exit(0)."),
    ],
)
def test_an_ordinary_line_is_not_reported(path: str, line: str) -> None:
    assert find_suspicious_lines(diff(path, line), ()) == ()


def test_at_most_twenty_suspicious_lines_are_shown() -> None:
    assert len(find_suspicious_lines(diff("a.py", *["os._exit(0)"] * 50), ())) == 20
