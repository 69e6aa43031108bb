"""Runs a WebAssembly module inside a workspace's sandbox, and compiles it on the trusted side, each
in a separate process.

`compile SOURCE TARGET` creates the file that `run ORDER` loads. An order is JSON: module,
arguments, paths, fuel, seconds, memory_bytes, table_elements, instances, output_bytes, file_bytes.
The last line that a run prints is its result, a JSON object. The order comes from the trusted side.
The module is an operator's, and gets no environment, no network and only the named files.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import wasmtime

from moothall.sandbox_runtime.confinement import ROOT
from moothall.sandbox_runtime.file_access import ToolFailure, clean, open_beneath

_TICK_SECONDS = 0.01
_STDERR_BYTES = 4000
_PAGE_BYTES = 65_536


def engine() -> wasmtime.Engine:
    """Return the engine. A compiled module works only with an engine of the same configuration."""
    config = wasmtime.Config()
    config.consume_fuel = True
    config.epoch_interruption = True
    config.max_wasm_stack = 512 * 1024
    config.wasm_threads = False
    config.memory_reservation = (
        0  # reserved address space counts as memory if the kernel has no better limit
    )
    config.memory_guard_size = 0
    return wasmtime.Engine(config)


def compile_module(source: str, target: str) -> None:
    """Compile a module. Raises `wasmtime.WasmtimeError` if it is invalid."""
    module = wasmtime.Module(engine(), Path(source).read_bytes())
    Path(target).write_bytes(module.serialize())


class _Sink:
    """Collects the module's output up to a limit; beyond it, writes fail."""

    def __init__(self, limit: int) -> None:
        self.data = bytearray()
        self.full = False
        self.on_full: Callable[[], None] | None = None
        self._limit = limit

    def __call__(self, data: bytes) -> int:
        remaining = self._limit - len(self.data)
        self.data += data[:remaining]
        if remaining >= len(data):
            return len(data)
        self.full = True
        if self.on_full:
            self.on_full()
        return -1


class Run:
    """One run of a module."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._out = _Sink(int(order["output_bytes"]))
        self._err = _Sink(_STDERR_BYTES)

    def answer(self) -> dict[str, Any]:
        """Run the module and return status, error, limit (the one that was hit) and output."""
        order, wasm_engine = self._order, engine()
        store = wasmtime.Store(wasm_engine)
        store.set_limits(
            memory_size=int(order["memory_bytes"]),
            table_elements=int(order["table_elements"]),
            instances=int(order["instances"]),
            tables=int(order["instances"]),
            memories=int(order["instances"]),
        )
        store.set_fuel(int(order["fuel"]))
        ticks = max(1, int(float(order["seconds"]) / _TICK_SECONDS))
        store.set_epoch_deadline(ticks)
        with tempfile.TemporaryDirectory(prefix="moothall-wasm-") as folder:
            try:
                store.set_wasi(self._wasi(Path(folder)))
            except ToolFailure as failure:
                return {"status": failure.status, "error": str(failure)}
            self._out.on_full = lambda: _interrupt(wasm_engine, ticks)
            _start_clock(wasm_engine)
            return self._run_module(wasm_engine, store)

    def _run_module(self, wasm_engine: wasmtime.Engine, store: wasmtime.Store) -> dict[str, Any]:
        linker = wasmtime.Linker(wasm_engine)
        linker.define_wasi()
        memory = None
        try:
            module = wasmtime.Module.deserialize_file(wasm_engine, self._order["module"])
            instance = linker.instantiate(store, module)
            exported = instance.exports(store)
            memory = exported.get("memory")
            start = exported.get("_start")
            if not isinstance(start, wasmtime.Func):
                return {
                    "status": "error",
                    "error": "the module has no _start: it must be a WASI command",
                }
            start(store)
        except wasmtime.ExitTrap as exit_trap:
            if exit_trap.code:
                return self._answer_failure(store, memory, f"it ended with {exit_trap.code}")
        except wasmtime.Trap as trap:
            return self._answer_trap(store, memory, trap)
        except wasmtime.WasmtimeError as error:
            return _refusal(str(error))
        if self._out.full:
            return self._limit_failure("output", "output", "it printed too much")
        return {
            "status": "success",
            "output": {**_output_of(bytes(self._out.data)), **self._success_fields(store)},
        }

    def _answer_trap(
        self, store: wasmtime.Store, memory: object, trap: wasmtime.Trap
    ) -> dict[str, Any]:
        if self._out.full:
            return self._limit_failure("output", "output", "it printed too much")
        match trap.trap_code:
            case wasmtime.TrapCode.OUT_OF_FUEL:
                return self._limit_failure(
                    "cpu", "fuel", f"it used up its fuel, {self._order['fuel']}"
                )
            case wasmtime.TrapCode.INTERRUPT:
                return self._limit_failure(
                    "timeout", "epoch", f"it ran longer than {self._order['seconds']:g} s"
                )
        return self._answer_failure(store, memory, trap.message.partition("\n")[0][:300])

    def _answer_failure(self, store: wasmtime.Store, memory: object, reason: str) -> dict[str, Any]:
        """Return the failure of a module. A module that cannot grow its memory fails in its own
        way, so memory use near the limit counts as exceeding it.
        """
        if self._out.full:
            return self._limit_failure("output", "output", "it printed too much")
        limit = int(self._order["memory_bytes"])
        if isinstance(memory, wasmtime.Memory) and memory.data_len(store) > limit - max(
            limit // 8, 2 * _PAGE_BYTES
        ):
            return self._limit_failure(
                "memory", "memory", f"it requested more than {limit} bytes of memory"
            )
        return {"status": "error", "error": f"{reason}{self._stderr_note()}"}

    def _limit_failure(self, status: str, limit: str, reason: str) -> dict[str, Any]:
        return {"status": status, "limit": limit, "error": f"{reason}{self._stderr_note()}"}

    def _stderr_note(self) -> str:
        stderr = self._err.data.decode("utf-8", "replace").strip()
        return f"; stderr: {stderr[-500:]}" if stderr else ""

    def _success_fields(self, store: wasmtime.Store) -> dict[str, Any]:
        used_fuel = int(self._order["fuel"]) - store.get_fuel()
        return {"said": self._err.data.decode("utf-8", "replace"), "fuel": used_fuel}

    def _wasi(self, folder: Path) -> wasmtime.WasiConfig:
        stdin_file = folder / "stdin"
        stdin_file.write_text(json.dumps(self._order["arguments"]), encoding="utf-8")
        wasi = wasmtime.WasiConfig()
        wasi.argv = ["tool"]
        wasi.env = []
        wasi.stdin_file = str(stdin_file)
        wasi.stdout_custom = self._out
        wasi.stderr_custom = self._err
        files_folder = folder / "files"
        files_folder.mkdir()
        for path in self._order["paths"]:
            self._mount(wasi, path, files_folder)
        wasi.preopen_dir(str(files_folder), ".", fs_mutable=False)
        return wasi

    def _mount(self, wasi: wasmtime.WasiConfig, path: str, files_folder: Path) -> None:
        """Make a folder, or a copy of a file, visible to the module. WASI can only mount folders,
        and a file's neighbours must stay hidden.
        """
        name = clean(path)
        root = os.open(ROOT, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        descriptor = open_beneath(root, name, os.O_RDONLY | os.O_NONBLOCK)
        file_stat = os.fstat(descriptor)
        if stat.S_ISDIR(file_stat.st_mode):
            # By descriptor, so that the checked folder is mounted even if its name is replaced.
            wasi.preopen_dir(f"/proc/self/fd/{descriptor}", name or ".", fs_mutable=False)
            return
        if not stat.S_ISREG(file_stat.st_mode):
            raise ToolFailure(f"{path!r} is neither a file nor a folder", "invalid")
        if file_stat.st_size > int(self._order["file_bytes"]):
            raise ToolFailure(
                f"{path!r} has {file_stat.st_size} bytes; at most {self._order['file_bytes']} are "
                "read"
            )
        copy = files_folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(descriptor, "rb") as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target)


def _output_of(printed: bytes) -> dict[str, Any]:
    text = printed.decode("utf-8", "replace")
    try:
        return {"result": json.loads(text)}
    except (ValueError, RecursionError):
        return {"text": text}


def _refusal(message: str) -> dict[str, Any]:
    """Return the failure of a module that could not start: its declared memory or table is too
    large, or an import is missing.
    """
    short_message = " ".join(message.split())[:300]
    for resource in ("memory", "table", "instance"):
        if resource in short_message and ("limit" in short_message or "exceed" in short_message):
            return {"status": "memory", "limit": resource, "error": short_message}
    return {"status": "error", "error": short_message}


def _interrupt(wasm_engine: wasmtime.Engine, ticks: int) -> None:
    """Stop a module that continues although its writes fail."""
    for _ in range(ticks):
        wasm_engine.increment_epoch()


def _start_clock(wasm_engine: wasmtime.Engine) -> None:
    def tick() -> None:
        while not never_set.wait(_TICK_SECONDS):
            wasm_engine.increment_epoch()

    never_set = threading.Event()
    threading.Thread(target=tick, daemon=True).start()


def main() -> None:
    """Compile or run, depending on argv."""
    if sys.argv[1] == "compile":
        compile_module(sys.argv[2], sys.argv[3])
        return
    answer = Run(json.loads(sys.argv[2])).answer()
    sys.stdout.write("\n" + json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # without waiting for the clock's thread and the engine


if __name__ == "__main__":
    main()
