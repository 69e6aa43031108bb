"""What is compiled with tests in other words runs where the disk has them as they were."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from moothall.inside import built, checks
from moothall.inside.cases import Cases
from moothall.inside.ended import CommandEnd
from moothall.inside.streams import Stream

PLUGINS = Path(built.__file__).with_name("plugins")
GO = """package shop

import (
	"os"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	t.Run("it reads", func(t *testing.T) {
		if text, _ := os.ReadFile("shop_test.go"); !strings.Contains(string(text), "the "+"disk") {
			t.Fatal("there is nothing of the disk")
		}
	})
}

func TestHidden(t *testing.T) {
	t.Log("the disk")
}

func TestSeesNoDifference(t *testing.T) {
	if !strings.Contains(os.Args[0], "/go-build") {
		t.Fatal(os.Args[0])
	}
}
"""
RUST = """#[test]
fn reads() {
    assert!(std::fs::read_to_string("tests/shop.rs").unwrap().contains(concat!("the ", "disk")));
}

#[test]
fn hidden() {
    assert_eq!("the disk".len(), 8);
}
"""


def ran(folder: Path, argv: tuple[str, ...]) -> tuple[Mapping[str, str], int]:
    """What cases the command tells of, and how it ended."""
    cases, code = Cases(), 0

    def once(other: tuple[str, ...], seconds: float) -> CommandEnd:
        nonlocal code
        done = subprocess.run(other, cwd=folder, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds)
        code = done.returncode
        stream = Stream(cases, argv)
        stream.feed(done.stdout)
        stream.end()
        return CommandEnd(status="success", exit_code=code, output=done.stdout, total=0, seconds=0.0, cpu_ms=0, max_rss_bytes=0)

    assert built.waits(argv, str(folder))
    built.run(argv, str(folder), once, lambda: 300.0, plugins=str(PLUGINS), built=f"{folder}-built")
    assert not built.waits(argv, str(folder))
    return cases.results, code


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("folder", ["", "inner/"])
def test_go_runs_other_tests_than_the_disk_has(tmp_path: Path, folder: str) -> None:
    if shutil.which("go") is None:
        pytest.skip("go is not installed; apt-get install golang brings it")
    other = GO.replace('t.Log("the disk")', 't.Error("hidden")')
    write(
        tmp_path / "shop",
        {
            "go.mod": "module example.org/shop\n\ngo 1.19\n",
            f"{folder}shop_test.go": GO,
            "more/more_test.go": '//go:build whole\n\npackage more\n\nimport "testing"\n\nfunc TestMore(t *testing.T) {}\n',
            f"{checks.INSTEAD}/{folder}shop_test.go": other,
        },
    )
    package = f"example.org/shop/{folder}".rstrip("/")
    cases, code = ran(tmp_path / "shop", ("go", "test", "-json", "-count=1", "-tags", "whole", "./..."))
    assert cases == {
        f"{package}::TestRead": "passed",
        f"{package}::TestRead/it_reads": "passed",
        f"{package}::TestHidden": "failed",
        f"{package}::TestSeesNoDifference": "passed",
        "example.org/shop/more::TestMore": "passed",
    }
    assert code
    assert (tmp_path / "shop" / folder / "shop_test.go").read_text(encoding="utf-8") == GO


def test_go_that_does_not_compile_in_other_words_is_red(tmp_path: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("go is not installed; apt-get install golang brings it")
    files = {"go.mod": "module example.org/shop\n\ngo 1.19\n", "shop_test.go": GO}
    write(tmp_path / "shop", {**files, f"{checks.INSTEAD}/shop_test.go": GO.replace("t.Log(", "t.Nothing(")})
    cases, code = ran(tmp_path / "shop", ("go", "test", "-json", "./..."))
    assert cases == {"example.org/shop": "errored"}
    assert code


def test_cargo_runs_other_tests_than_the_disk_has(tmp_path: Path) -> None:
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not installed; apt-get install cargo brings it")
    write(
        tmp_path,
        {
            "Cargo.toml": '[package]\nname = "shop"\nversion = "1.0.0"\nedition = "2021"\n',
            "src/lib.rs": "",
            "build.rs": "fn main() {}\n",
            "tests/shop.rs": RUST,
            f"{checks.INSTEAD}/tests/shop.rs": RUST.replace('"the disk".len(), 8', '"hidden".len(), 8'),
        },
    )
    cases, code = ran(tmp_path, ("cargo", "test", "--offline"))
    assert cases == {"shop tests/shop.rs::reads": "passed", "shop tests/shop.rs::hidden": "failed"}
    assert code
    assert (tmp_path / "tests" / "shop.rs").read_text(encoding="utf-8") == RUST
