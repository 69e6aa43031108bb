"""The copies of tied answers that the tie-breaker runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from moothall.deliberation.judging.comparison import copy_command
from support.repos import make_repo

_PATCH = """diff --git a/price.js b/price.js
--- a/price.js
+++ b/price.js
@@ -1 +1 @@
-exports.price = 1;
+exports.price = 2;
"""


def _copy(workspace: Path, place: Path) -> None:
    uploads = workspace / ".moothall-answers"
    uploads.mkdir()
    (uploads / "a.patch").write_text(_PATCH, encoding="utf-8")
    (uploads / "b.patch").write_text("", encoding="utf-8")
    command = copy_command("ab", str(workspace), str(place))
    subprocess.run(["bash", "-c", command], check=True)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    make_repo(root, {"price.js": "exports.price = 1;\n", "packages/cart/index.js": ""})
    for folder in ("node_modules/left-pad", "packages/cart/node_modules/left-pad"):
        (root / folder).mkdir(parents=True)
        (root / folder / "index.js").write_text("module.exports = 'padded'", encoding="utf-8")
    (root / "node_modules" / "typescript.js").write_bytes(bytes(50_000_000))
    for folder in ("native", "src"):
        (root / folder / "target").mkdir(parents=True)
        (root / folder / "target" / "file").write_text(folder, encoding="utf-8")
    (root / "native" / "Cargo.toml").write_text("[package]", encoding="utf-8")
    return root


def test_each_answer_is_copied_and_shares_the_installed_packages(
    workspace: Path, tmp_path: Path
) -> None:
    place = tmp_path / "answers"
    _copy(workspace, place)
    assert (place / "a" / "price.js").read_text(encoding="utf-8") == "exports.price = 2;\n"
    assert (place / "b" / "price.js").read_text(encoding="utf-8") == "exports.price = 1;\n"
    for folder in ("node_modules", "packages/cart/node_modules"):
        assert (place / "a" / folder).is_symlink()
        assert (place / "a" / folder / "left-pad" / "index.js").is_file()
    assert (place / "a" / "native" / "target").is_symlink()
    assert not (place / "a" / "src" / "target").is_symlink()
    names = ["native", "node_modules", "packages", "price.js", "src"]
    assert sorted(path.name for path in (place / "a").iterdir()) == names
    assert not (workspace / ".moothall-answers").exists()


def test_a_workspace_that_is_too_large_is_not_copied(workspace: Path, tmp_path: Path) -> None:
    (workspace / "data.bin").write_bytes(bytes(50_000_000))
    with pytest.raises(subprocess.CalledProcessError):
        _copy(workspace, tmp_path / "answers")
    assert sorted(path.name for path in (tmp_path / "answers").glob("[a-z]*")) == [
        "a.patch",
        "b.patch",
    ]
