"""What tests may compare with, and a patch changes."""

from __future__ import annotations

from moothall.ranking.screening.data import data_files, find_mentions


def diff(*paths: str) -> str:
    return "".join(f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-1\n+2\n" for path in paths)


def test_files_without_code_are_data_but_for_those_of_the_authors_tests() -> None:
    said = diff("shop/prices.json", "shop/price.py", "src/a.rs", "package.json", "README.md", "own/a.txt", "page.html")
    assert data_files(said, ("own/a.txt",)) == ("shop/prices.json", "page.html")


def test_those_that_a_test_names_are_shown() -> None:
    tests = {"tests/test_a.py": 'open("../shop/prices.json")\n', "tests/test_b.py": "old-page.html, page.html5"}
    found = find_mentions(("shop/prices.json", "page.html", "s.json"), tests)
    assert found == ("shop/prices.json:1: tests/test_a.py names it, and may compare with what stands there",)


def test_what_is_as_on_the_base_in_a_proof_is_no_data() -> None:
    said = diff("pyproject.toml", "inner/Cargo.toml", ".gitignore", "requirements-dev.txt", "AUTHORS", "a/requirements.txt")
    assert data_files(said, ()) == ("a/requirements.txt",)
