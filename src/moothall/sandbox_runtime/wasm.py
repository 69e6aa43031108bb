"""Runs one WebAssembly module, inside a workspace's sandbox; also compiles it, on the trusted side.
A process of its own each.

`compile SOURCE TARGET` makes what `run ORDER` loads. An order is JSON: module, arguments, paths,
fuel, seconds, memory_bytes, table_elements, instances, output_bytes, file_bytes. The last line that
a run prints is its answer, a JSON object. What it is told, it has from us; the module is an
operator's, and gets no environment, no network and no file that is not named.
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
from moothall.sandbox_runtime.paths import ToolFailure, clean, open_beneath

_TICK = 0.01
_STDERR_BYTES = 4000
_PAGE = 65_536


def engine() -> wasmtime.Engine:
    """Return the engine: a compiled module fits only one that is set in the same way."""
    config = wasmtime.Config()
    config.consume_fuel = True
    config.epoch_interruption = True
    config.max_wasm_stack = 512 * 1024
    config.wasm_threads = False
    config.memory_reservation = (
        0  # address space counts as memory where the kernel has no better limit
    )
    config.memory_guard_size = 0
    return wasmtime.Engine(config)


def compile_module(source: str, target: str) -> None:
    """Compile a module. Raises `wasmtime.WasmtimeError` where it is none."""
    module = wasmtime.Module(engine(), Path(source).read_bytes())
    Path(target).write_bytes(module.serialize())


class _Sink:
    """What the module prints, up to a limit; beyond it, a write fails."""

    def __init__(self, limit: int) -> None:
        self.data = bytearray()
        self.full = False
        self.on_full: Callable[[], None] | None = None
        self._limit = limit

    def __call__(self, data: bytes) -> int:
        room = self._limit - len(self.data)
        self.data += data[:room]
        if room >= len(data):
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
        """Run it and return status, error, limit (the one that was hit) and output."""
        order, host = self._order, engine()
        store = wasmtime.Store(host)
        store.set_limits(
            memory_size=int(order["memory_bytes"]),
            table_elements=int(order["table_elements"]),
            instances=int(order["instances"]),
            tables=int(order["instances"]),
            memories=int(order["instances"]),
        )
        store.set_fuel(int(order["fuel"]))
        ticks = max(1, int(float(order["seconds"]) / _TICK))
        store.set_epoch_deadline(ticks)
        with tempfile.TemporaryDirectory(prefix="moothall-wasm-") as folder:
            try:
                store.set_wasi(self._wasi(Path(folder)))
            except ToolFailure as failed:
                return {"status": failed.status, "error": str(failed)}
            self._out.on_full = lambda: _interrupt(host, ticks)
            _start_clock(host)
            return self._run(host, store)

    def _run(self, host: wasmtime.Engine, store: wasmtime.Store) -> dict[str, Any]:
        linker = wasmtime.Linker(host)
        linker.define_wasi()
        memory = None
        try:
            module = wasmtime.Module.deserialize_file(host, self._order["module"])
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
        except wasmtime.ExitTrap as ended:
            if ended.code:
                return self._answer_failure(store, memory, f"it ended with {ended.code}")
        except wasmtime.Trap as trap:
            return self._answer_trap(store, memory, trap)
        except wasmtime.WasmtimeError as error:
            return _refusal(str(error))
        if self._out.full:
            return self._over("output", "output", "it printed too much")
        return {
            "status": "success",
            "output": {**_output_of(bytes(self._out.data)), **self._about(store)},
        }

    def _answer_trap(
        self, store: wasmtime.Store, memory: object, trap: wasmtime.Trap
    ) -> dict[str, Any]:
        if self._out.full:
            return self._over("output", "output", "it printed too much")
        match trap.trap_code:
            case wasmtime.TrapCode.OUT_OF_FUEL:
                return self._over("cpu", "fuel", f"it used up its fuel, {self._order['fuel']}")
            case wasmtime.TrapCode.INTERRUPT:
                return self._over(
                    "timeout", "epoch", f"it ran longer than {self._order['seconds']:g} s"
                )
        return self._answer_failure(store, memory, trap.message.partition("\n")[0][:300])

    def _answer_failure(self, store: wasmtime.Store, memory: object, why: str) -> dict[str, Any]:
        """A module that may not grow its memory fails in its own way: that it was near its limit is
        what can be seen.
        """
        if self._out.full:
            return self._over("output", "output", "it printed too much")
        limit = int(self._order["memory_bytes"])
        if isinstance(memory, wasmtime.Memory) and memory.data_len(store) > limit - max(
            limit // 8, 2 * _PAGE
        ):
            return self._over("memory", "memory", f"it wanted more than {limit} bytes of memory")
        return {"status": "error", "error": f"{why}{self._last_words()}"}

    def _over(self, status: str, limit: str, why: str) -> dict[str, Any]:
        return {"status": status, "limit": limit, "error": f"{why}{self._last_words()}"}

    def _last_words(self) -> str:
        said = self._err.data.decode("utf-8", "replace").strip()
        return f"; it said: {said[-500:]}" if said else ""

    def _about(self, store: wasmtime.Store) -> dict[str, Any]:
        used = int(self._order["fuel"]) - store.get_fuel()
        return {"said": self._err.data.decode("utf-8", "replace"), "fuel": used}

    def _wasi(self, folder: Path) -> wasmtime.WasiConfig:
        given = folder / "stdin"
        given.write_text(json.dumps(self._order["arguments"]), encoding="utf-8")
        wasi = wasmtime.WasiConfig()
        wasi.argv = ["tool"]
        wasi.env = []
        wasi.stdin_file = str(given)
        wasi.stdout_custom = self._out
        wasi.stderr_custom = self._err
        shown = folder / "files"
        shown.mkdir()
        for path in self._order["paths"]:
            self._mount(wasi, path, shown)
        wasi.preopen_dir(str(shown), ".", fs_mutable=False)
        return wasi

    def _mount(self, wasi: wasmtime.WasiConfig, path: str, shown: Path) -> None:
        """Show a folder, or a copy of a file: WASI shows folders only, and what lies beside the
        file is not named.
        """
        name = clean(path)
        root = os.open(ROOT, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        found = open_beneath(root, name, os.O_RDONLY | os.O_NONBLOCK)
        about = os.fstat(found)
        if stat.S_ISDIR(about.st_mode):
            # By its descriptor, so that what was checked is what is shown, whatever takes its
            # name's place.
            wasi.preopen_dir(f"/proc/self/fd/{found}", name or ".", fs_mutable=False)
            return
        if not stat.S_ISREG(about.st_mode):
            raise ToolFailure(f"{path!r} is neither a file nor a folder", "invalid")
        if about.st_size > int(self._order["file_bytes"]):
            raise ToolFailure(
                f"{path!r} has {about.st_size} bytes; at most {self._order['file_bytes']} are read"
            )
        copy = shown / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(found, "rb") as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target)


def _output_of(printed: bytes) -> dict[str, Any]:
    text = printed.decode("utf-8", "replace")
    try:
        return {"result": json.loads(text)}
    except (ValueError, RecursionError):
        return {"text": text}


def _refusal(why: str) -> dict[str, Any]:
    """What could not even begin: a memory or a table that is declared larger than it may be, or a
    missing import.
    """
    first = " ".join(why.split())[:300]
    for word in ("memory", "table", "instance"):
        if word in first and ("limit" in first or "exceed" in first):
            return {"status": "memory", "limit": word, "error": first}
    return {"status": "error", "error": first}


def _interrupt(host: wasmtime.Engine, ticks: int) -> None:
    """End a module that goes on though its writes fail."""
    for _ in range(ticks):
        host.increment_epoch()


def _start_clock(host: wasmtime.Engine) -> None:
    def tick() -> None:
        while not over.wait(_TICK):
            host.increment_epoch()

    over = threading.Event()
    threading.Thread(target=tick, daemon=True).start()


def main() -> None:
    """Compile or run, as argv says."""
    if sys.argv[1] == "compile":
        compile_module(sys.argv[2], sys.argv[3])
        return
    answer = Run(json.loads(sys.argv[2])).answer()
    sys.stdout.write("\n" + json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # the clock's thread and the engine have nothing left to do


if __name__ == "__main__":
    main()
