"""The opposite of all that a test of another language asserts, wherever it stands."""

from __future__ import annotations

import pytest

from moothall.ranking.rewriting.every import assert_opposite
from moothall.ranking.rewriting.rewrite import rewrite

_WHICH = 'if w {\n\t\tt.Errorf("(no %v)", w)\n\t} else {\n\t\tt.Errorf("much")\n\t}'
"""In which words a test fails."""


@pytest.mark.parametrize(
    ("ending", "body", "expected"),
    [
        (".go", "if f() != 2 {\n\tt.Error()\n}", "if !(f() != 2) {\n\tt.Error()\n}"),
        (".go", "if a, b := f(); a != b {\n\tt.Fatal()\n}", "if a, b := f(); !(a != b) {\n\tt.Fatal()\n}"),
        (".go", "each(func(x int) {\n\tassert.Equal(t, 2, x)\n})", "each(func(x int) {\n\tassert.NotEqual(t, 2, x)\n})"),
        (".go", "helper(t, f())", ""),
        (".go", f"if f() != w {{\n\t{_WHICH}\n}}", f"if !(f() != w) {{\n\t{_WHICH}\n}}"),
        (".go", _WHICH, ""),
        (".go", "if w {\n\tif f() == nil {\n\t\tt.Error()\n\t}\n}", "if w {\n\tif !(f() == nil) {\n\t\tt.Error()\n\t}\n}"),
        (".rs", "each(|x| assert_eq!(x, 2));", "each(|x| assert_ne!(x, 2));"),
        (".rs", 'assert!(f(1, 2), "why");', 'assert!(!(f(1, 2)), "why");'),
        (".rs", "assert!(false);", ""),
        (".rs", "if f() > 2 { panic!() }", "if !(f() > 2) { panic!() }"),
        (".js", "each((x) => assert.strictEqual(x, 2));", "each((x) => assert.notStrictEqual(x, 2));"),
        (".js", "assert(f(1), 'why');", "assert(!(f(1)), 'why');"),
        (".js", "assert.throws(() => f());", "assert.doesNotThrow(() => f());"),
        (".ts", "expect(f(1, [2])).toEqual(2)", "expect(f(1, [2])).not.toEqual(2)"),
        (".ts", "expect(f()).not.toBe(2)", "expect(f()).toBe(2)"),
        (".js", "if (f(1) > 2) throw new Error()", "if (!(f(1) > 2)) throw new Error()"),
    ],
)
def test_all_is_turned_round(ending: str, body: str, expected: str) -> None:
    assert assert_opposite(ending, body) == expected


def test_the_body_of_a_test_may_be_one_expression() -> None:
    text = 'it("is (so)", () => later(1).then((x) => assert.equal(x, 2)), 50);\nit("b", () => {});\n'
    made, done = rewrite("a.test.js", text, {("is (so)",)}, "expect", "seed", form="every")
    assert done == {("is (so)",)}
    assert made == text.replace("assert.equal", "assert.notEqual")
    made, _ = rewrite("a.test.js", text, {("is (so)",)}, "end", "seed")
    assert "try { return later(1).then((x) => assert.equal(x, 2))\n} finally {" in made
    assert made.endswith('}, 50);\nit("b", () => {});\n')


@pytest.mark.parametrize("form", ["", "every"])
@pytest.mark.parametrize(("rounds", "changed"), [(3, True), (1000, False)])
def test_a_body_that_would_hold_the_reading_up_keeps_its_expectations(form: str, rounds: int, changed: bool) -> None:  # noqa: FBT001 - a case
    text = "func TestA(t *testing.T) {\n" + "\tif f() != 2 {\n\t\tt.Error()\n\t}\n" * rounds + "}\n"
    made, done = rewrite("a_test.go", text, {("TestA",)}, "expect", "seed", form=form)  # type: ignore[arg-type] # one of them
    assert (made != text, bool(done)) == (changed, changed)
