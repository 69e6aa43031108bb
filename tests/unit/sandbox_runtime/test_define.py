from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moothall.sandbox_runtime.define import define, split_qualified_name
from moothall.sandbox_runtime.file_access import TextLimits, ToolFailure
from moothall.sandbox_runtime.files import TOOLS
from moothall.sandbox_runtime.syntax import ENDINGS, definitions, language_of, parse

PYTHON = '''import os


class A(Base):
    """Doc."""

    @property
    def x(self):
        return 1

    @x.setter
    def x(self, v):
        self._x = v

    def run(self):
        return """
flush
"""


# about f
@deco
def f(a):
    def inner():
        return a

    return inner


def g(): return 2


if __name__ == "__main__":
    f(1)
'''
SCRIPT = """/** Adds. */
export function add(a, b) {
  return a + b;
}

const mul = (a, b) => a * b;

class C {
  m() { return 1; }
}

exports.div = function (a, b) { return a / b };
module.exports = { sub(a, b) { return a - b; }, neg: (a) => -a };
P.prototype.go = function () { return 1; };
"""
TYPED = """interface Shape { area(): number }
export abstract class Box<T> implements Shape {
  private n = 1;
  @logged()
  area(): number { return 1; }
  static of = <T>(a: T): Box<T> => new Box(a);
}
namespace N { export function deep(a: string): void {} }
export const pick = async (a: number): Promise<number> => a;
"""
GO = """package a

// T is.
type T[K any] struct{ n int }

// M does.
//go:noinline
func (t *T[K]) M() int {
	return t.n
}

func f() {}
"""
RUST = """use std::fmt;

/// A point.
#[derive(Debug)]
pub struct P<T> { x: T }

impl<T> P<T> {
    /// New.
    #[inline]
    pub fn new(x: T) -> Self { P { x } }
}

impl<T> fmt::Display for P<T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result { Ok(()) }
}
impl<T> fmt::LowerHex for P<T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result { Ok(()) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn works() {}
}
"""
TEXTS = {"python": PYTHON, "javascript": SCRIPT, "typescript": TYPED, "go": GO, "rust": RUST}


def define_text(language: str, name: str, content: str) -> str:
    return define(TEXTS[language], language, name, content).text


@pytest.mark.parametrize(
    ("language", "name", "content", "old", "new"),
    [
        # decorators and comments stay unless the content has its own
        (
            "python",
            "f",
            "def f(a, b):\n    return b\n",
            PYTHON[PYTHON.index("def f") : PYTHON.index("\n\n\ndef g")],
            "def f(a, b):\n    return b",
        ),
        (
            "python",
            "f",
            "# about f\n@other\ndef f(a):\n    return 1",
            PYTHON[PYTHON.index("# about f") : PYTHON.index("\n\n\ndef g")],
            "# about f\n@other\ndef f(a):\n    return 1",
        ),
        ("python", "A.run", "def run(self):\n    return 1", 'return """\nflush\n"""', "return 1"),
        (
            "python",
            "A.run",
            ("class A:\n    def run(self):\n        return 1"),
            'return """\nflush\n"""',
            "return 1",
        ),
        ("python", "run", "  def run(self):\n      return 1", 'return """\nflush\n"""', "return 1"),
        (
            "python",
            "f.inner",
            "def inner():\n    return 5",
            ("    def inner():\n        return a"),
            ("    def inner():\n        return 5"),
        ),
        ("python", "g()", "def g():\n    return 3", "def g(): return 2", "def g():\n    return 3"),
        # the decorators distinguish a property from its setter
        ("python", "A.x", "@x.setter\ndef x(self, v):\n    pass", "self._x = v", "pass"),
        # text within a string keeps its own indentation
        (
            "python",
            "A.run",
            ("def run(self):\n    return '''\nflat\n'''"),
            '"""\nflush\n"""',
            "'''\nflat\n'''",
        ),
        ("javascript", "add", "function add(a, b) {\n  return 0;\n}", "return a + b", "return 0"),
        ("javascript", "mul", "const mul = (a, b) => 0;", "=> a * b;", "=> 0;"),
        ("javascript", "C.m", "m() { return 2; }", "m() { return 1; }", "m() { return 2; }"),
        ("javascript", "m", "m() { return 2; }", "m() { return 1; }", "m() { return 2; }"),
        (
            "javascript",
            "div",
            "exports.div = (a, b) => 0;",
            ("exports.div = function (a, b) { return a / b };"),
            "exports.div = (a, b) => 0;",
        ),
        (
            "javascript",
            "sub",
            "sub(a, b) { return 0; }",
            "sub(a, b) { return a - b; }",
            "sub(a, b) { return 0; }",
        ),
        (
            "javascript",
            "P.go",
            ("P.prototype.go = function () { return 2; };"),
            "go = function () { return 1; };",
            "go = function () { return 2; };",
        ),
        (
            "typescript",
            "Box.area",
            "area(): number { return 2; }",
            "area(): number { return 1; }",
            "area(): number { return 2; }",
        ),
        ("typescript", "N.deep", "function deep(a: string): void { a; }", "void {}", "void { a; }"),
        (
            "typescript",
            "pick",
            ("export const pick = async (a: number) => 1;"),
            "(a: number): Promise<number> => a;",
            "(a: number) => 1;",
        ),
        (
            "typescript",
            "Shape",
            "interface Shape { side(): number }",
            "area(): number }\n",
            "side(): number }\n",
        ),
        ("go", "(*T).M", "func (t *T[K]) M() int {\n    return 2\n}", "return t.n", "return 2"),
        ("go", "M", "func (t *T[K]) M() int {\n\treturn 2\n}", "return t.n", "return 2"),
        (
            "go",
            "T.M",
            ("// M is new.\nfunc (t *T[K]) M() int {\n\treturn t.n\n}"),
            "// M does.\n",
            "// M is new.\n",
        ),
        ("go", "f", "func f() {\n\tprintln()\n}", "func f() {}", "func f() {\n\tprintln()\n}"),
        (
            "rust",
            "P::new",
            ("pub fn new(x: T) -> Self {\n    todo!()\n}"),
            "Self { P { x } }",
            "Self {\n        todo!()\n    }",
        ),
        (
            "rust",
            "P::new",
            ("/// Made.\npub fn new(x: T) -> Self { P { x } }"),
            "/// New.",
            "/// Made.",
        ),
        (
            "rust",
            "<P as LowerHex>::fmt",
            "fn fmt(&self) {}",
            RUST[RUST.index("LowerHex") : RUST.rindex("\n}\n\n#[cfg")],
            ("LowerHex for P<T> {\n    fn fmt(&self) {}"),
        ),
        ("rust", "P", "pub struct P<T> { y: T }", "struct P<T> { x: T }", "struct P<T> { y: T }"),
        (
            "rust",
            "tests::works",
            ("#[test]\nfn works() { panic!() }"),
            "works() {}",
            "works() { panic!() }",
        ),
    ],
)
def test_the_named_span_changes_and_nothing_else(
    language: str, name: str, content: str, old: str, new: str
) -> None:
    assert TEXTS[language].count(old) == 1
    assert define_text(language, name, content) == TEXTS[language].replace(old, new)


@pytest.mark.parametrize(
    ("language", "name", "content", "preceding", "added"),
    [
        (
            "python",
            "A.new",
            "def new(self):\n    return 7",
            '"""\n',
            "\n    def new(self):\n        return 7\n",
        ),
        (
            "python",
            "h",
            "def h():\n    return 7",
            "def g(): return 2\n\n\n",
            "def h():\n    return 7\n\n\n",
        ),
        (
            "javascript",
            "C.k",
            "k() {\n  return 2;\n}",
            "m() { return 1; }\n",
            "\n  k() {\n    return 2;\n  }\n",
        ),
        ("javascript", "id", "const id = (a) => a;", "return 1; };\n", "\nconst id = (a) => a;\n"),
        (
            "go",
            "T.N",
            "func (t *T[K]) N() int {\n\treturn 2\n}",
            "return t.n\n}\n",
            "\nfunc (t *T[K]) N() int {\n\treturn 2\n}\n",
        ),
        ("go", "g", "func g() {}", "func f() {}\n", "\nfunc g() {}\n"),
        ("rust", "P::old", "fn old(&self) {}", "Self { P { x } }\n", "\n    fn old(&self) {}\n"),
        ("rust", "free", "pub fn free() {}", "Ok(()) }\n}\n\n", "pub fn free() {}\n\n"),
    ],
)
def test_a_new_definition_is_added_in_the_right_place(
    language: str, name: str, content: str, preceding: str, added: str
) -> None:
    text = TEXTS[language]
    at = text.rindex(preceding) + len(preceding)
    result = define(text, language, name, content)
    assert result.text == text[:at] + added + text[at:]
    assert not result.replaced
    assert (
        "".join(result.text.splitlines(keepends=True)[result.start - 1 : result.end]).strip()
        == added.strip()
    )


@pytest.mark.parametrize(
    ("language", "name", "content", "reason"),
    [
        (
            "python",
            "A.x",
            "def x(self):\n    return 2",
            r"'A.x' on line 7, 'A.x' on line 11.*decorators",
        ),
        (
            "python",
            "run",
            "def run():\n    return 1",
            r"no 'run' outside a class; 'A.run' on line 15: give that name",
        ),
        (
            "python",
            "B.f",
            "def f(self):\n    return 1",
            r"no class 'B' to add 'f' to; there are 'A' on line 4",
        ),
        ("python", "g", "return 3", r"whole definition of 'g'.*none is in it"),
        ("python", "g", "def h():\n    return 3", r"whole definition of 'g'.*it defines 'h'"),
        (
            "python",
            "g",
            "def g():\nreturn 3",
            r"not parse any more, near line 2 of the content: expected an indented block",
        ),
        ("python", "g", "def g(:\n    return 3", r"not parse any more"),
        ("python", "a b", "def g(): pass", r"'a b' is not a name"),
        ("python", "g", " \n", r"content is empty"),
        (
            "javascript",
            "add",
            "function add(a, b) {\n  return 0;",
            r"bracket or a quote of the content left open",
        ),
        (
            "rust",
            "P::fmt",
            "fn fmt(&self) {}",
            r"'<P as Display>::fmt' on line 14, '<P as LowerHex>::fmt' on line 17",
        ),
        ("rust", "Q::a", "fn a(&self) {}", r"no impl block 'Q'"),
    ],
)
def test_an_ambiguous_definition_is_refused(
    language: str, name: str, content: str, reason: str
) -> None:
    with pytest.raises(ToolFailure, match=reason):
        define_text(language, name, content)


def test_line_endings_and_the_byte_order_mark_are_kept() -> None:
    text = "\ufeff" + PYTHON.replace("\n", "\r\n")
    new_text = define(text, "python", "g", "def g():\n    return 3\n").text
    assert new_text == text.replace("def g(): return 2", "def g():\r\n    return 3")


def test_indentation_with_tabs_is_kept() -> None:
    text = "class A:\n\tdef f(self):\n\t\tif 1:\n\t\t\treturn 1\n"
    new_text = define(text, "python", "A.f", "def f(self):\n    if 2:\n        return 2").text
    assert new_text == "class A:\n\tdef f(self):\n\t\tif 2:\n\t\t\treturn 2\n"


def test_a_file_with_syntax_errors_can_be_edited() -> None:
    broken = "def f():\n    return (\n\n\ndef g():\n    return 1\n"
    assert define(broken, "python", "f", "def f():\n    return ()").text.startswith(
        "def f():\n    return ()"
    )


def test_a_definition_is_added_to_an_empty_file_and_after_a_line_without_end() -> None:
    assert define("", "python", "f", "def f():\n    pass").text == "def f():\n    pass\n"
    assert (
        define("a = 1", "python", "f", "def f():\n    pass").text
        == "a = 1\n\n\ndef f():\n    pass\n"
    )


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("f", ("f",)),
        ("def f", ("f",)),
        ("A.B.c()", ("A", "B", "c")),
        ("(*T).M", ("T", "M")),
        ("(t *T[K]).M", ("T", "M")),
        ("P<T>::new", ("P", "new")),
        ("C#m", ("C", "m")),
        ("C.prototype.m", ("C", "m")),
        ("größe", ("größe",)),
    ],
)
def test_qualified_names_are_split_for_each_language(name: str, parts: tuple[str, ...]) -> None:
    assert split_qualified_name(name)[0] == parts


NAMES = st.sampled_from(["f", "g", "A.run", "A.new", "h", "A", "f.inner"])
CONTENT = st.one_of(
    st.sampled_from(
        [
            "def f(a):\n  return '''\n é\n'''",
            "def run(self):\n\treturn 1",
            "class A:\n    pass\n\n    def run(self): ...",
        ]
    ),
    st.text("defgh runA():\n\t'\"#\\é@", max_size=40),
)


@given(NAMES, CONTENT, st.sampled_from(["\n", "\r\n"]), st.sampled_from(["", "\ufeff"]))
def test_nothing_of_the_file_is_lost_but_the_named_span(
    name: str, content: str, end: str, mark: str
) -> None:
    text = mark + PYTHON.replace("\n", end)
    try:
        result = define(text, "python", name, content)
    except ToolFailure:
        return
    parts = split_qualified_name(name)[0]
    data = text.removeprefix(mark).encode()
    old = [
        item
        for item in definitions(parse("python", data), "python", deep=True)
        if item.parts == parts
    ]
    encoded = result.text.encode()
    if not result.replaced:
        assert not old
        result_lines = iter(result.text.splitlines())
        assert all(
            any(line == result_line for result_line in result_lines)
            for line in text.splitlines()
            if line.strip()
        )
        return
    # What stands before and after the old definition is there still, but for a comment above it
    # that the content repeats.
    assert any(
        encoded.startswith(
            mark.encode() + data[: item.start].removesuffix(b"# about f" + end.encode())
        )
        and encoded.endswith(data[item.inner_end :])
        for item in old
    )
    compile(result.text.removeprefix("\ufeff"), "x.py", "exec")


LIMITS = TextLimits(file_bytes=400_000, output_bytes=2000)


@given(
    st.lists(
        st.sampled_from(["..", "a", "up", "away", "secret.py", ".git", "", "/"]),
        min_size=1,
        max_size=5,
    )
)
@example(["up", "secret.py"])
@example(["a", "away", "secret.py"])
def test_no_definition_reads_or_writes_outside_the_workspace(parts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        outside, inside = Path(folder), Path(folder, "inside")
        (inside / "a").mkdir(parents=True)
        secret = outside / "secret.py"
        secret.write_text("def f():\n    return 'top secret'\n", encoding="utf-8")
        (inside / "up").symlink_to("..")
        (inside / "a" / "away").symlink_to(outside)
        outside_before = sorted(outside.iterdir()), secret.read_bytes()
        root = os.open(inside, os.O_PATH | os.O_DIRECTORY)
        try:
            result = TOOLS["files.define"](
                root, {"path": "/".join(parts), "name": "f", "content": "def f(): pass"}, LIMITS
            )
            assert "top secret" not in str(result)
        except ToolFailure:
            pass
        finally:
            os.close(root)
        assert (sorted(outside.iterdir()), secret.read_bytes()) == outside_before
        assert not (inside / ".git").exists()


@pytest.mark.parametrize("language", sorted(set(ENDINGS.values())))
@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000,
        "{" * 10_000,
        "def f():\n" + " if 1:\n" * 1000,
        "a = '''" + "x" * 30_000,
        "\x01\x02é\u2028\n" * 500,
    ],
)
def test_hostile_texts_give_a_result_or_a_refusal(language: str, text: str) -> None:
    content = {"python": "def f(): pass", "go": "func f() {}", "rust": "fn f() {}"}.get(
        language, "function f() {}"
    )
    try:
        result = define(text, language, "f", content)
    except ToolFailure:
        return
    assert content in result.text


def test_files_of_other_languages_and_binary_ones_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"def f():\0 pass")
    (tmp_path / "big.py").write_bytes(b"# x\n" * 200_000)
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    try:
        for path, reason in (
            ("a.c", r"no language that files.define knows"),
            ("a.py", "binary"),
            ("big.py", "at most 400000 are read"),
        ):
            with pytest.raises(ToolFailure, match=reason):
                TOOLS["files.define"](
                    root, {"path": path, "name": "f", "content": "def f(): pass"}, LIMITS
                )
        result = TOOLS["files.define"](
            root, {"path": "src/new.py", "name": "f", "content": "def f():\n    pass"}, LIMITS
        )
    finally:
        os.close(root)
    assert result == {"path": "src/new.py", "name": "f", "replaced": False, "start": 1, "end": 2}
    assert (tmp_path / "src" / "new.py").read_text(encoding="utf-8") == "def f():\n    pass\n"


def test_a_language_is_detected_by_the_file_extension() -> None:
    assert [language_of(path) for path in ("a/b.PY", "x.d.ts", "Makefile", "a.txt", "b.tsx")] == [
        "python",
        "typescript",
        "",
        "",
        "tsx",
    ]
