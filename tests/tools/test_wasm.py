"""An operator's own tools as WebAssembly modules: real wasmtime in real sandboxes; every limit hit
in its own way.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import wasmtime

from moothall.app.command_repository import register
from moothall.app.workspaces import open_workspace_services
from moothall.config.workspace import WasmSettings
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.errors import ConfigurationError
from moothall.sandbox_runtime.wasm import Run, compile_module
from moothall.settings import load_settings
from moothall.telemetry import metrics
from moothall.workspace.wasm import MAX_MODULE_BYTES
from support.repos import make_repo

pytestmark = pytest.mark.e2e

_WASI = '(import "wasi_snapshot_preview1" "%s" (func $%s (param %s) (result i32)))'
_IO = "\n".join(
    _WASI % (name, name, params)
    for name, params in (
        ("fd_read", "i32 i32 i32 i32"),
        ("fd_write", "i32 i32 i32 i32"),
        ("path_open", "i32 i32 i32 i32 i32 i64 i64 i32 i32"),
        ("environ_sizes_get", "i32 i32"),
    )
)


def _module(body: str, *, memory: str = "1", declarations: str = "") -> str:
    return f'(module {_IO} (memory (export "memory") {memory}) {declarations} (func (export "_start") {body}))'


def _write(descriptor: int, at: int, length: str) -> str:
    """Write bytes of the memory; the vector lies at 0."""
    return f"""(i32.store (i32.const 0) (i32.const {at})) (i32.store (i32.const 4) {length})
        (drop (call $fd_write (i32.const {descriptor}) (i32.const 0) (i32.const 1) (i32.const 8)))"""


_READ = """(i32.store (i32.const 0) (i32.const 100)) (i32.store (i32.const 4) (i32.const 1000))
    (drop (call $fd_read (i32.const {0}) (i32.const 0) (i32.const 1) (i32.const 8)))"""
_ECHO = _module(_READ.format(0) + _write(1, 100, "(i32.load (i32.const 8))"))


def _open(path: str, flags: int, rights: int) -> str:
    """Open a file beneath the first preopened folder (3). The descriptor is stored at 16; the error
    is printed as a one-digit character.
    """
    return f"""(i32.store (i32.const 20) (call $path_open (i32.const 3) (i32.const 0) (i32.const 2000) (i32.const {len(path)})
        (i32.const {flags}) (i64.const {rights}) (i64.const {rights}) (i32.const 0) (i32.const 16)))"""


def _data(path: str) -> str:
    return f'(data (i32.const 2000) "{path}")'


_FD_READ, _FD_WRITE = 2, 64
_CAT = """(i32.store (i32.const 0) (i32.const 100)) (i32.store (i32.const 4) (i32.const 1000))
    (drop (call $fd_read (i32.load (i32.const 16)) (i32.const 0) (i32.const 1) (i32.const 8)))"""
_ERRNO = (
    "(i32.store8 (i32.const 30) (i32.add (i32.const 48) (i32.ne (i32.load (i32.const 20)) "
    "(i32.const 0))))" + _write(1, 30, "(i32.const 1)")
)
_FOREVER = "(loop $l (br $l))"
_MODULES: Mapping[str, str] = {
    "echo": _ECHO,
    "cat": _module(
        _open("src/a.txt", 0, _FD_READ) + _CAT + _write(1, 100, "(i32.load (i32.const 8))"),
        declarations=_data("src/a.txt"),
    ),
    "beside": _module(_open("src/b.txt", 0, _FD_READ) + _ERRNO, declarations=_data("src/b.txt")),
    "outside": _module(
        _open("../../etc/passwd", 0, _FD_READ) + _ERRNO, declarations=_data("../../etc/passwd")
    ),
    "link": _module(_open("out/passwd", 0, _FD_READ) + _ERRNO, declarations=_data("out/passwd")),
    "write": _module(
        _open("src/new.txt", 1, _FD_WRITE) + _ERRNO, declarations=_data("src/new.txt")
    ),
    "environment": _module(
        "(drop (call $environ_sizes_get (i32.const 40) (i32.const 44)))(i32.store8 (i32.const 50) "
        "(i32.add (i32.const 48) (i32.load (i32.const 40))))" + _write(1, 50, "(i32.const 1)")
    ),
    "spin": _module(_FOREVER),
    "declared": _module("(nop)", memory="4000"),
    "hungry": _module(
        "(loop $l (br_if $l (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) unreachable"
    ),
    "table": _module("(nop)", declarations="(table 200000 funcref)"),
    "tables": _module("(nop)", declarations="(table 1 funcref) " * 5),
    "memories": _module("(nop)", declarations="(memory 1) " * 4),
    "deep": _module("(call $f)", declarations="(func $f (call $f))"),
    "chatty": _module(
        f"(loop $l {_write(1, 0, '(i32.const 60000)')} (br_if $l (i32.ne (i32.load (i32.const 8)) "
        "(i32.const 0))))"
    ),
    "fails": _module("unreachable"),
}
_PATHS = {"cat": "path", "beside": "path", "link": "path", "write": "path"}


def _put(folder: Path) -> None:
    folder.mkdir()
    for name, text in _MODULES.items():
        (folder / f"{name}.wasm").write_bytes(wasmtime.wat2wasm(text))
        arguments: dict[str, dict[str, Any]] = {"path": {"type": "path"}} if name in _PATHS else {}
        if name == "echo":
            arguments = {
                "word": {"type": "string", "max_length": 20},
                "times": {"type": "integer", "default": 1, "maximum": 9},
            }
        manifest = {"summary": f"the module {name}", "arguments": arguments, "seconds": 50}
        (folder / f"{name}.yaml").write_text(json.dumps(manifest), encoding="utf-8")


class WasmCaller:
    def __init__(self, call: Any) -> None:
        self._call, self._number = call, 0

    async def __call__(self, name: str, **arguments: Any) -> ToolResult:
        self._number += 1
        deadline = datetime.now(UTC) + timedelta(seconds=60)
        result: ToolResult = await self._call(
            ToolCall(f"r{self._number}", f"wasm.{name}", arguments, deadline)
        )
        return result


@asynccontextmanager
async def _app(folder: Path) -> AsyncIterator[WasmCaller]:
    if not (folder / "tools").exists():
        _put(folder / "tools")
        make_repo(
            folder / "repo",
            {"src/a.txt": "hello\n", "src/b.txt": "other\n", "Makefile": "test:\n\ttrue\n"},
        )
        (folder / "repo" / "out").symlink_to("/etc")
    settings = load_settings(data_dir=folder / "data", wasm=WasmSettings(folder=folder / "tools"))
    async with open_workspace_services(settings) as services:
        base = await services.repositories.resolve(
            await register(settings, str(folder / "repo"), "HEAD")
        )
        prepared = await services.repositories.prepare(base)
        async with services.workspaces.open(prepared, "one") as workspace:
            yield WasmCaller(workspace.call)


async def test_a_module_gets_only_its_arguments_and_the_files_it_names(tmp_path: Path) -> None:
    async with _app(tmp_path) as run:
        echoed = await run("echo", word="hi", times=2)
        assert echoed.status is ToolStatus.SUCCESS, echoed
        assert echoed.output["result"] == {"word": "hi", "times": 2}
        assert echoed.output["fuel"] > 0
        assert echoed.usage.max_rss_bytes > 0
        assert (await run("cat", path="src/a.txt")).output["text"] == "hello\n"
        assert "hello" not in str((await run("cat", path="src")).output), (
            "a folder is mounted under its own name"
        )
        assert (await run("cat", path=".")).output["text"] == "hello\n"
        assert (await run("beside", path="src/a.txt")).output["result"] == 1, (
            "other folders are not visible"
        )
        assert (await run("beside", path=".")).output["result"] == 0
        assert (await run("outside")).output["result"] == 1
        assert (await run("link", path=".")).output["result"] == 1
        assert (await run("write", path=".")).output["result"] == 1, "mounted folders are read-only"
        assert (await run("environment")).output["result"] == 0
        for path in ("../outside", "/etc/passwd", "out/passwd", "missing"):
            assert (await run("cat", path=path)).status in {ToolStatus.INVALID, ToolStatus.ERROR}, (
                path
            )


async def test_each_limit_ends_a_module_with_its_own_status_and_is_counted(tmp_path: Path) -> None:
    expected = {
        "spin": (ToolStatus.CPU, "fuel"),
        "declared": (ToolStatus.MEMORY, "memory"),
        "hungry": (ToolStatus.MEMORY, "memory"),
        "table": (ToolStatus.MEMORY, "table"),
        "chatty": (ToolStatus.OUTPUT, "output"),
    }
    async with _app(tmp_path) as run:
        for name, (status, limit) in expected.items():
            count_before = metrics.WASM_LIMITS.values.get((f"wasm.{name}", limit), 0)
            result = await run(name)
            assert (name, result.status) == (name, status), result
            assert metrics.WASM_LIMITS.values[f"wasm.{name}", limit] == count_before + 1
            assert result.error
        for name in ("deep", "fails"):
            assert (await run(name)).status is ToolStatus.ERROR
        assert (await run("echo", word="still", times=1)).status is ToolStatus.SUCCESS
    manifest = tmp_path / "tools" / "spin.yaml"
    manifest.write_text(
        json.dumps({"summary": "the module spin", "seconds": 0.3}), encoding="utf-8"
    )
    async with _app(tmp_path) as run:
        count_before = metrics.WASM_LIMITS.values.get(("wasm.spin", "epoch"), 0)
        assert (await run("spin")).status is ToolStatus.TIMEOUT
        assert metrics.WASM_LIMITS.values["wasm.spin", "epoch"] == count_before + 1


async def test_tables_memories_and_instances_are_bounded(tmp_path: Path) -> None:
    async with _app(tmp_path) as run:
        for name, limit in (("tables", "table"), ("memories", "memory")):
            count_before = metrics.WASM_LIMITS.values.get((f"wasm.{name}", limit), 0)
            result = await run(name)
            assert (name, result.status) == (name, ToolStatus.MEMORY), result
            assert metrics.WASM_LIMITS.values[f"wasm.{name}", limit] == count_before + 1
        assert (await run("echo", word="one")).status is ToolStatus.SUCCESS
    source, target = tmp_path / "tools" / "echo.wasm", tmp_path / "echo.cwasm"
    compile_module(str(source), str(target))
    numbers = ("fuel", "seconds", "memory_bytes", "table_elements", "output_bytes", "file_bytes")
    order = {
        "module": str(target),
        "arguments": {},
        "paths": [],
        **dict.fromkeys(numbers, 10_000_000),
        "instances": 0,
    }
    assert Run(order).answer()["limit"] == "instance", (
        "a command needs one instance, so a limit of 0 refuses it"
    )


async def test_a_module_is_compiled_once_and_an_invalid_module_stops_the_start(
    tmp_path: Path,
) -> None:
    async with _app(tmp_path) as run:
        assert (await run("echo", word="a", times=1)).status is ToolStatus.SUCCESS
    module_folder = tmp_path / "data" / "wasm"
    compiled = {file.name: file.stat().st_mtime_ns for file in module_folder.iterdir()}
    assert len(compiled) == len(_MODULES)
    async with _app(tmp_path):
        assert {file.name: file.stat().st_mtime_ns for file in module_folder.iterdir()} == compiled
    (tmp_path / "tools" / "echo.wasm").write_bytes(b"\0asm nonsense")
    with pytest.raises(
        ConfigurationError, match=r"echo\.wasm is not a runnable WebAssembly module"
    ):
        async with _app(tmp_path):
            pass
    os.truncate(tmp_path / "tools" / "echo.wasm", MAX_MODULE_BYTES + 1)
    with pytest.raises(ConfigurationError, match="more than 20000000 bytes"):
        async with _app(tmp_path):
            pass
