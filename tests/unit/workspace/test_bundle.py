from __future__ import annotations

import subprocess
from pathlib import Path

from moothall.sandbox.bubblewrap import interpreter
from moothall.workspace.executor_connection import bundle

_COSTLY = (
    "ast",
    "dataclasses",
    "inspect",
    "pathlib",
    "pydantic",
    "shutil",
    "socket",
    "typing",
    "xml",
)


def test_the_executor_starts_from_its_bytecode_without_expensive_imports(
    tmp_path: Path,
) -> None:
    bundle(tmp_path / "code")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'code')!r}); import "
        "moothall.sandbox_runtime.executor; print(*sys.modules)"
    )
    process = subprocess.run(
        [str(interpreter()), "-I", "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        timeout=60,
    )
    loaded = set(process.stdout.split())
    assert "moothall.sandbox_runtime.commands" in loaded
    assert not loaded & set(_COSTLY)


def test_the_bundle_contains_bytecode_and_reporters_readable_by_any_uid(tmp_path: Path) -> None:
    bundle(tmp_path / "code")
    files = [path for path in (tmp_path / "code").rglob("*") if path.is_file()]
    reporters = [path for path in files if path.parent.name == "plugins"]
    programs = [path for path in files if path.parent.name == "bin"]
    assert {path.suffix for path in files if path not in (*reporters, *programs)} == {".pyc"}
    assert {path.name for path in reporters} >= {"moothall_pytest.py", "moothall_node.cjs"}, (
        "they are source, for any interpreter"
    )
    assert [(path.name, path.stat().st_mode & 0o777) for path in programs] == [("node", 0o755)]
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in files if path not in programs)
    assert all(path.parent.stat().st_mode & 0o777 == 0o755 for path in files)
