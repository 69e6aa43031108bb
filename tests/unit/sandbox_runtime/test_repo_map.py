from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from moothall.sandbox_runtime.file_access import TextLimits
from moothall.sandbox_runtime.files import TOOLS

FILES = {
    "src/shop/cart.py": (
        "from shop.money import total\n\n\nclass Cart:\n    def count(self):\n        return "
        "len(self.items)\n\n"
        "    def sum(self):\n        return total(self.items)\n"
    ),
    "src/shop/money.py": (
        "def total(rows):\n    return sum(rows)\n\n\ndef unused(rows):\n    return rows\n"
    ),
    "src/shop/far.py": "def nobody():\n    return 1\n",
    "tests/test_cart.py": (
        "from shop.cart import Cart\n\n\ndef test_sum():\n    assert Cart().sum() == 1\n"
    ),
    "lib/a.js": (
        "it('adds', () => {\n  const a = add(1);\n  assert(a);\n});\n\nfunction add(a) {\n  "
        "return a;\n}\n"
    ),
    "go/a.go": (
        "package a\n\nfunc (t *T) Add() int {\n\treturn one()\n}\n\nfunc one() int {\n\treturn 1\n"
        "}\n"
    ),
    "rs/lib.rs": "pub struct P;\n\nimpl P {\n    fn add(&self) -> u8 {\n        1\n    }\n}\n",
    "vendor/x.py": "def total():\n    pass\n",
    "dist.min.js": "function q(){}" * 2000,
    "README.md": "read me",
}
ORDER: dict[str, Any] = {
    "frames": [],
    "tests": [],
    "paths": [],
    "words": [],
    "names": [],
    "map_chars": 2000,
    "files": 100,
    "bytes": 1_000_000,
}
LIMITS = TextLimits(file_bytes=1_000_000, output_bytes=1_000_000)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def survey(folder: Path, **order: Any) -> dict[str, Any]:
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        return TOOLS["files.survey"](descriptor, {**ORDER, **order}, LIMITS)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("path", "line", "name", "first", "text"),
    [
        (
            "src/shop/cart.py",
            9,
            "Cart.sum",
            8,
            "    def sum(self):\n        return total(self.items)",
        ),
        ("lib/a.js", 2, "", 1, FILES["lib/a.js"].partition("\n\n")[0]),
        ("lib/a.js", 7, "add", 6, "function add(a) {\n  return a;\n}"),
        ("go/a.go", 4, "T.Add", 3, "func (t *T) Add() int {\n\treturn one()\n}"),
        ("rs/lib.rs", 5, "P::add", 4, "    fn add(&self) -> u8 {\n        1\n    }"),
        ("src/shop/cart.py", 1, "", 1, "from shop.money import total"),
    ],
)
def test_a_line_leads_to_its_surrounding_code(  # noqa: PLR0917
    root: Path, path: str, line: int, name: str, first: int, text: str
) -> None:
    (span,) = survey(root, frames=[[path, line]])["spans"]
    assert span == {"path": path, "name": name, "line": first, "text": text}


def test_an_invalid_line_leads_to_no_code(root: Path) -> None:
    assert (
        survey(
            root,
            frames=[
                ["src/shop/cart.py", 0],
                ["src/shop/cart.py", 999],
                ["gone.py", 1],
                ["README.md", 1],
            ],
        )["spans"]
        == []
    )


def test_tests_are_found_by_name_and_listed_once(root: Path) -> None:
    surveyed = survey(
        root, frames=[["tests/test_cart.py", 5]], tests=[["tests/test_cart.py", "test_sum"]]
    )
    assert [(span["path"], span["name"]) for span in surveyed["spans"]] == [
        ("tests/test_cart.py", "test_sum")
    ]


def test_names_lead_to_the_file_that_defines_them(root: Path) -> None:
    assert survey(root, names=["Cart", "total", "nothing"])["homes"] == [
        "src/shop/cart.py",
        "src/shop/money.py",
    ]


def test_the_map_prefers_named_symbols_and_their_callees(root: Path) -> None:
    drawn = survey(root, frames=[["tests/test_cart.py", 5]], words=["sum", "Cart"])["map"]
    assert drawn.index("src/shop/cart.py:\n  class Cart") < drawn.index(
        "src/shop/money.py:\n  def total(rows)"
    )
    assert "vendor/x.py" not in drawn
    assert "dist.min.js" not in drawn
    short = survey(root, frames=[["tests/test_cart.py", 5]], words=["sum", "Cart"], map_chars=90)[
        "map"
    ]
    assert len(short) <= 90
    assert "Cart: def sum(self)" in short
    assert "nobody" not in short


def test_the_map_is_deterministic_and_within_its_limits(root: Path) -> None:
    arguments = {"frames": [["tests/test_cart.py", 5]], "words": ["sum"]}
    assert json.dumps(survey(root, **arguments)) == json.dumps(survey(root, **arguments))
    assert survey(root, files=3)["parsed"] == 2  # one of them is generated code
    assert survey(root, files=0) == {
        "spans": [],
        "homes": [],
        "example": None,
        "map": "",
        "parsed": 0,
    }
    nearest = survey(
        root, bytes=len(FILES["tests/test_cart.py"]), frames=[["tests/test_cart.py", 5]]
    )
    assert nearest["spans"][0]["name"] == "test_sum"


def test_the_example_is_a_short_nearby_function_outside_the_failing_code(root: Path) -> None:
    example = survey(root, frames=[["src/shop/cart.py", 9], ["tests/test_cart.py", 5]])["example"]
    assert (example["path"], example["name"]) == ("src/shop/cart.py", "Cart.count")
    assert example["text"] == "def count(self):\n    return len(self.items)"


def test_an_example_contains_nothing_that_json_escapes(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "def f():\n    return \"x\"\n\n\ndef g():\n    return r'\\d'\n\n\ndef h(): return 1\n",
        encoding="utf-8",
    )
    (tmp_path / "test_a.py").write_text("def test_k():\n    return 1\n", encoding="utf-8")
    assert survey(tmp_path)["example"] is None  # nor is it a test
    (tmp_path / "b.py").write_text("def k():\n    return 1\n", encoding="utf-8")
    assert survey(tmp_path)["example"]["name"] == "k"


def test_hostile_files_are_skipped_or_bounded(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text("(" * 20_000, encoding="utf-8")
    (tmp_path / "binary.py").write_bytes(b"def f():\0\n" * 100)
    (tmp_path / "latin.py").write_bytes(b"# \xff\ndef g():\n    return 1\n")
    (tmp_path / "long.py").write_text("def h():\n" + "    a = 1\n" * 5000, encoding="utf-8")
    (tmp_path / "link.py").symlink_to("/etc/passwd")
    surveyed = survey(tmp_path, frames=[["long.py", 4000], ["latin.py", 3]])
    assert [len(span["text"].splitlines()) < 100 for span in surveyed["spans"]] == [True, True]
    assert "passwd" not in json.dumps(surveyed)


def test_invalid_bytes_in_one_file_do_not_end_the_analysis(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes("# ä ö ü\n".encode() + b"# \xe4\ndef f():\n    return 1\n")
    (span,) = survey(tmp_path, frames=[["a.py", 4]])["spans"]
    assert span["name"] == "f"


def test_untracked_files_and_module_stubs_are_left_out(tmp_path: Path) -> None:
    for path in ("source/a.ts", "distribution/a.ts"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(
            "export function add(a: number): number {\n\treturn other(a);\n}\n"
        )
    for path in ("source/b.ts", "pkg.py", "pkg.pyi", "alone.pyi"):
        (tmp_path / path).write_text(
            "export function other(a) {\n\treturn add(a);\n}\n"
            if path.endswith("ts")
            else "def total(a): ...\n"
        )
    unrestricted = survey(tmp_path, words=["add", "total"])
    assert "distribution/a.ts:" in unrestricted["map"]
    assert "pkg.pyi:" not in unrestricted["map"]
    assert unrestricted["parsed"] == 5  # all but pkg.pyi
    known_paths = ["source/a.ts", "source/b.ts", "pkg.py", "pkg.pyi", "alone.pyi"]
    tracked = survey(tmp_path, words=["add", "total"], known=known_paths)
    assert "source/a.ts:" in tracked["map"]
    assert "distribution" not in tracked["map"]
    assert tracked["parsed"] == 4
    assert (
        survey(tmp_path, paths=["pkg.pyi"], known=known_paths)["parsed"] == 5
    )  # it was requested by its path
