from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.ranking.rewriting.expect import expect_other


def other(ending: str, body: str) -> str:
    return expect_other(ending, body, "word", 7)


@pytest.mark.parametrize(
    ("ending", "body", "expected"),
    [
        (".go", "\n\tif a := f(1, 2); a != 3 {\n\t\tt.Fatalf()\n\t}\n", "\n\tif a := f(1, 2); a != 10 {\n\t\tt.Fatalf()\n\t}\n"),
        (".go", '\n\tif f("x") != "y" {\n\t\tt.Error()\n\t}\n', '\n\tif f("x") != "yword" {\n\t\tt.Error()\n\t}\n'),
        (".go", """\n\tif f() != "of 'x'" {\n\t\tt.Error()\n\t}\n""", """\n\tif f() != "'x' fo" {\n\t\tt.Error()\n\t}\n"""),
        (".go", "\n\ta := f()\n\tassert.Equal(t, 5, a)\n", "\n\ta := f()\n\tassert.Equal(t, 12, a)\n"),
        (
            ".go",
            '\n\tassert := assert.New(t)\n\tassert.Equal(5, f(), "why")\n',
            '\n\tassert := assert.New(t)\n\tassert.Equal(12, f(), "why")\n',
        ),
        (".go", "\n\tif a := f(); a != 255 {\n\t\tt.Error()\n\t}\n", "\n\tif a := f(); a != 248 {\n\t\tt.Error()\n\t}\n"),
        (".rs", " assert_eq!(f(), 127); ", " assert_eq!(f(), 120); "),
        (".rs", " assert_eq!(f(1, &[2]), -3); ", " assert_eq!(f(1, &[2]), 4); "),
        (".rs", ' let a = f(); assert_eq!("x", a, "of {}", 1); ', ' let a = f(); assert_eq!("xword", a, "of {}", 1); '),
        (".rs", " assert_eq!(f(), 5u8,); ", " assert_eq!(f(), 12u8,); "),
        (".rs", " assert_eq!(f(), 5.5); ", " assert_eq!(f(), 12.5); "),
        (".rs", " if (f(&[1.0]) - 3.5).abs() > 1e-9 { panic!(); } ", " if (f(&[1.0]) - 10.5).abs() > 1e-9 { panic!(); } "),
        (
            ".go",
            "\n\tif a := f(); math.Abs(a-3) > eps {\n\t\tt.Fatal()\n\t}\n",
            "\n\tif a := f(); math.Abs(a-10) > eps {\n\t\tt.Fatal()\n\t}\n",
        ),
        (
            ".js",
            "\n  if (Math.abs(f(1) - 3) > 0.01) throw new Error()\n",
            "\n  if (Math.abs(f(1) - 10) > 0.01) throw new Error()\n",
        ),
        (".js", " assert.strictEqual(f('a'), 'b', 'why'); ", " assert.strictEqual(f('a'), 'bword', 'why'); "),
        (".ts", "\n  const a = f()\n  expect(a).toBe(5)\n", "\n  const a = f()\n  expect(a).toBe(12)\n"),
        (".js", "\n  // why\n  assert.equal(f(1), 0);\n", "\n  // why\n  assert.equal(f(1), 7);\n"),
        (
            ".js",
            " t.assert.deepStrictEqual(f(1), { 'a': ['b', 2] }); ",
            " t.assert.deepStrictEqual(f(1), { 'a': ['bword', 2] }); ",
        ),
        (".js", " expect(f(1)).to.be.deep.equal([[true], 2]); ", " expect(f(1)).to.be.deep.equal([[true], 9]); "),
        (".js", " expect(f(1)).to.eql('b'); ", " expect(f(1)).to.eql('bword'); "),
        (".ts", "\n  expect(f(1)).toEqual({a: -1})\n", "\n  expect(f(1)).toEqual({a: 6})\n"),
        (".rs", ' assert_eq!(f(1), Some(vec!["b".to_string()])); ', ' assert_eq!(f(1), Some(vec!["bword".to_string()])); '),
        (".rs", " assert_eq!(f(1)[..], ['a', 'b']); ", " assert_eq!(f(1)[..], ['j', 'b']); "),
        (".rs", " assert_eq!(f(1), 'j'); ", " assert_eq!(f(1), 'k'); "),
        (".go", "\n\tassert.Equal(t, 'a', f())\n", "\n\tassert.Equal(t, 'j', f())\n"),
        (".rs", " assert_eq!(f(1), Ok((3, true))); ", " assert_eq!(f(1), Ok((10, true))); "),
        (".go", '\n\tassert.Equal(t, []string{"b", "c"}, f())\n', '\n\tassert.Equal(t, []string{"bword", "c"}, f())\n'),
        (
            ".go",
            '\n\tassert.Equal(t, map[string][]int{"a": {2}}, f())\n',
            '\n\tassert.Equal(t, map[string][]int{"a": {9}}, f())\n',
        ),
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
        (".go", '\n\tif a != "{}" {\n\t\tt.Fatal()\n\t}\n'),
        (".go", "\n\tmockT := new(testing.T)\n\tassert.Equal(mockT, 5, a)\n"),
        (".go", '\n\tassert := our.New(t)\n\tassert.Equal(f(), 5, "why")\n'),
        (".go", '\n\tassert.Equal(f(1), a, "why")\n'),
        (".rs", " assert_eq!(a, b, 5); "),
        (".rs", " #[cfg(windows)]\n assert_eq!(a, 5); "),
        (".rs", " if a { return; } assert_eq!(a, 5); "),
        (".rs", " for a in b { assert_eq!(a, 5); } "),
        (".rs", ' let a = "; assert_eq!(a, 5);"; '),
        (".js", "\n  if (a)\n    assert.equal(a, 5)\n"),
        (".js", " items.forEach(a => { assert.equal(a, 5); }); "),
        (".js", " expect(a).not.toBe(5); "),
        (".js", " assert.equal(a, `${b}`); "),
        (".js", " t.plan(1); assert.equal(a, 5); "),
        (".js", " assert.equal(a, b, 'why'); "),
        (".js", " assert.deepEqual(a, [f(1)]); "),
        (".js", " assert.deepEqual(a, { b: true }); "),
        (".js", " assert.deepEqual(a, [b ? 'c' : 1]); "),
        (".js", " assert.deepEqual([1], ['b']); "),
        (".rs", " assert_eq!(a, vec![f(1)]); "),
        (".rs", " assert_eq!(a, vec![0; 3]); "),
        (".go", "\n\tassert.Equal(t, []shop.Item{{1}}, f())\n"),
        (".js", " my.assert.equal(a, 5); "),
    ],
)
def test_what_may_be_passed_over_stays(ending: str, body: str) -> None:
    assert other(ending, body) == ""


PIECES = [
    *["for _, tt := range tests {", "tests := []struct {", "}{", "want int\n", "{1, 2},", "if a != tt.want {", "t.Fatal()"],
    *[
        "for (a, exp) in [",
        "(1, 2)",
        "] {",
        "assert_eq!(a, exp);",
        "for (const [a, exp] of [",
        "[1, 2]",
        "]) {",
        "}",
        "{",
        "\n",
        '"',
    ],
]


@given(st.sampled_from([".go", ".rs", ".js"]), st.lists(st.sampled_from(PIECES), max_size=20).map("".join))
def test_any_table_is_read_to_its_end(ending: str, body: str) -> None:
    assert isinstance(other(ending, body), str)


@given(
    st.sampled_from([".go", ".rs", ".js"]), st.text(st.sampled_from("if assert_eq!(a, 5);{}\n\"'`!= 3.toBexpect/*"), max_size=200)
)
def test_any_text_is_read_to_its_end(ending: str, body: str) -> None:
    other(ending, body)


GO_TABLE = """
	tests := []struct {
		name, in string
		want     int // as it should be
	}{
		{"a", "x", 1},
		{name: "b", in: "y", want: 2},
		{"c", "z", three},
	}
	for _, tt := range tests {
		BODY
	}
"""
GO_RUN = """t.Run(tt.name, func(t *testing.T) {
			if got := f(tt.in); got != tt.want {
				t.Errorf("f(%q) = %d, not %d", tt.in, got, tt.want)
			}
		})"""


def go(body: str) -> str:
    return GO_TABLE.replace("BODY", body)


@pytest.mark.parametrize(
    "body",
    [
        GO_RUN,
        "tt := tt\n\t\t" + GO_RUN,
        "if got := f(tt.in); got != tt.want {\n\t\t\tt.Fatal(got)\n\t\t}",
        "got := f(tt.in)\n\t\tif tt.want != got {\n\t\t\tt.Fatal(got)\n\t\t}",
        "got, err := f(tt.in)\n\t\tif err != nil {\n\t\t\tt.Fatal(err)\n\t\t}\n\t\tassert.Equal(t, tt.want, got)",
        "got := f(tt.in)\n\t\tif !reflect.DeepEqual(got, tt.want) {\n\t\t\tt.Fatal(got)\n\t\t}",
    ],
)
def test_the_expected_column_of_a_table_is_another(body: str) -> None:
    changed = go(body).replace('"x", 1', '"x", 8').replace("want: 2", "want: 9")
    assert other(".go", go(body)) == changed


@pytest.mark.parametrize(
    "text",
    [
        go(GO_RUN.replace("if got", "if tt.in == short {\n\t\t\t\treturn\n\t\t\t}\n\t\t\tif got")),
        go("if tt.in == short {\n\t\t\tcontinue\n\t\t}\n\t\t" + GO_RUN),
        go("if short {\n\t\t\t" + GO_RUN + "\n\t\t}"),
        go(GO_RUN.replace("f(tt.in)", "f(tt.in, tt.want)")),
        go(GO_RUN.replace("f(tt.in)", "f(tt)")),
        go(GO_RUN.replace("f(tt.in)", "f(tt.in)").replace("if got", "make(tt.want)\n\t\t\tif got")),
        go(GO_RUN.replace("got != tt.want {", "got != tt.want && long {")),
        go(GO_RUN.replace("t.Errorf", "note")),
        go("t.Parallel()\n\t\t" + GO_RUN),  # the loop's variable may be the last row's
        go(GO_RUN).replace("for _, tt", "tests = tests[2:]\n\tfor _, tt"),
        go(GO_RUN).replace("\tfor _, tt", "\tif testing.Short() {\n\t\treturn\n\t}\n\tfor _, tt"),
        go(GO_RUN).replace("want ", "told ").replace("want:", "told:").replace("tt.want", "tt.told"),
        go(GO_RUN).replace("in string", "in string; fields"),
        " for (a, expected) in cases { assert_eq!(f(a), expected); } ",
        " let cases = [(1, 2)]; for (a, expected) in cases { if a > 0 { assert_eq!(f(a), expected); } } ",
        " let cases = [(1, 2)]; for (a, expected) in cases { assert_eq!(f(a, expected), expected); } ",
        " for (a, b) in [(1, 2)] { assert_eq!(f(a), b); } ",
        " for (a, expected) in [(1, 2)].iter().skip(1) { assert_eq!(f(a), expected); } ",
        " for (const [a, expected] of [[1, 2]]) { test('x', () => { assert.equal(f(a), expected); }); } ",
        " for (const [a, expected] of [[1, 2]].slice(1)) { assert.equal(f(a), expected); } ",
        " for (const [a, expected] of cases) { assert.equal(f(a), expected); } ",
    ],
)
def test_a_table_whose_rows_may_be_passed_over_stays(text: str) -> None:
    assert other(".go" if "tests :=" in text else ".rs" if "assert_eq!" in text else ".js", text) == ""


@pytest.mark.parametrize(
    ("ending", "text", "expected"),
    [
        (".rs", ' for (a, expected) in [("x", 1), ("y", b)] { assert_eq!(f(a), expected); } ', '[("x", 8), ("y", b)]'),
        (".rs", ' let cases = vec![(1, 2)]; for (a, want) in cases.iter() { assert_eq!(*want, f(a), "{a}"); } ', "vec![(1, 9)]"),
        (".rs", " let cases = &[(1, 2u8)]; for (a, exp) in cases { assert_eq!(f(a), *exp); } ", "&[(1, 9u8)]"),
        (".js", " for (const [a, expected] of [['x', 1]]) { assert.equal(f(a), expected); } ", "[['x', 8]]"),
        (".ts", " const t = [[1, 'x']]; for (const [a, want] of t) { expect(f(a)).toBe(want); } ", "[[1, 'xword']]"),
        (".js", " for (const {a, out} of [{a: 1, out: 2}]) { assert.equal(f(a), out); } ", "{a: 1, out: 9}"),
    ],
)
def test_so_it_is_in_tables_of_rust_and_scripts(ending: str, text: str, expected: str) -> None:
    assert expected in other(ending, text)
