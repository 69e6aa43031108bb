from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.ranking.rewrite_expect import expect_other


def other(ending: str, body: str) -> str:
    return expect_other(ending, body, "word", 7)


@pytest.mark.parametrize(
    ("ending", "body", "expected"),
    [
        (".go", "\n\tif a := f(1, 2); a != 3 {\n\t\tt.Fatalf()\n\t}\n", "\n\tif a := f(1, 2); a != 10 {\n\t\tt.Fatalf()\n\t}\n"),
        (".go", '\n\tif f("x") != "y" {\n\t\tt.Error()\n\t}\n', '\n\tif f("x") != "yword" {\n\t\tt.Error()\n\t}\n'),
        (".go", "\n\ta := f()\n\tassert.Equal(t, 5, a)\n", "\n\ta := f()\n\tassert.Equal(t, 12, a)\n"),
        (".rs", " assert_eq!(f(1, &[2]), -3); ", " assert_eq!(f(1, &[2]), 4); "),
        (".rs", ' let a = f(); assert_eq!("x", a, "of {}", 1); ', ' let a = f(); assert_eq!("xword", a, "of {}", 1); '),
        (".rs", " assert_eq!(f(), 5u8,); ", " assert_eq!(f(), 12u8,); "),
        (".js", " assert.strictEqual(f('a'), 'b', 'why'); ", " assert.strictEqual(f('a'), 'bword', 'why'); "),
        (".ts", "\n  const a = f()\n  expect(a).toBe(5)\n", "\n  const a = f()\n  expect(a).toBe(12)\n"),
        (".js", "\n  // why\n  assert.equal(f(1), 0);\n", "\n  // why\n  assert.equal(f(1), 7);\n"),
    ],
)
def test_what_is_compared_is_another_value(ending: str, body: str, expected: str) -> None:
    assert other(ending, body) == expected


@pytest.mark.parametrize(
    ("ending", "body"),
    [
        (".go", "\n\tif a == 3 {\n\t\tt.Fatal()\n\t}\n"),
        (".go", "\n\tif a != 3 && b {\n\t\tt.Fatal()\n\t}\n"),
        (".go", "\n\tif a != 3 {\n\t\tb()\n\t}\n"),
        (".go", "\n\tfor range a {\n\t\tif a != 3 {\n\t\t\tt.Fatal()\n\t\t}\n\t}\n"),
        (".go", "\n\tif short {\n\t\tt.Skip()\n\t}\n\tif a != 3 {\n\t\tt.Fatal()\n\t}\n"),
        (".go", "\n\t// if a != 3 { t.Fatal() }\n"),
        (".rs", " assert_eq!(a, b, 5); "),
        (".rs", " #[cfg(windows)]\n assert_eq!(a, 5); "),
        (".rs", " if a { return; } assert_eq!(a, 5); "),
        (".rs", " for a in b { assert_eq!(a, 5); } "),
        (".rs", " assert_eq!(a, 5.0); "),
        (".rs", ' let a = "; assert_eq!(a, 5);"; '),
        (".js", "\n  if (a)\n    assert.equal(a, 5)\n"),
        (".js", " items.forEach(a => { assert.equal(a, 5); }); "),
        (".js", " expect(a).not.toBe(5); "),
        (".js", " assert.equal(a, `${b}`); "),
        (".js", " t.plan(1); assert.equal(a, 5); "),
        (".js", " assert.equal(a, b, 'why'); "),
        (".js", " my.assert.equal(a, 5); "),
    ],
)
def test_what_may_be_passed_over_stays(ending: str, body: str) -> None:
    assert other(ending, body) == ""


@given(
    st.sampled_from([".go", ".rs", ".js"]), st.text(st.sampled_from("if assert_eq!(a, 5);{}\n\"'`!= 3.toBexpect/*"), max_size=200)
)
def test_any_text_is_read_to_its_end(ending: str, body: str) -> None:
    other(ending, body)
