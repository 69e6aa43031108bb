"""A real OPA server for tests, on loopback: the one on the PATH, or one built once from its Go
module into the user's cache.

`scripts/opa` starts the same server for people.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from moothall.authorization.rules import policies_folder
from support import gobuilt

_START_SECONDS, _STOP_SECONDS = 60.0, 10.0


def program() -> Path:
    """Return the program. Raises `gobuilt.Missing`."""
    return gobuilt.program("opa")


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, int]]:
    """Run a server over a folder of *.rego until the context ends; yield its URL and process id.
    Raises `gobuilt.Missing`.
    """
    opa = program()
    with (
        tempfile.TemporaryDirectory(prefix="moothall-opa-") as home,
        (Path(home) / "log").open("wb") as log,
    ):
        command = [
            str(opa),
            "run",
            "--server",
            "--addr=127.0.0.1:0",
            "--disable-telemetry",
            "--log-format=json",
        ]
        files = [str(file) for file in sorted(folder.glob("*.rego"))]
        process = subprocess.Popen(
            [*command, *files], stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield _address(process, Path(home) / "log"), process.pid
        finally:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until the server reports its address and answers."""
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"OPA ended at its start: {log.read_text(errors='replace')[-2000:]}")
        with suppress(psutil.Error, OSError):
            for port in _ports(process.pid):
                url = f"http://127.0.0.1:{port}"
                with urllib.request.urlopen(f"{url}/health", timeout=5):  # noqa: S310 - our own server
                    return url
        time.sleep(0.1)
    raise RuntimeError(f"OPA did not answer within {_START_SECONDS:.0f} seconds")


def _ports(pid: int) -> list[int]:
    sockets = psutil.Process(pid).net_connections(kind="tcp4")
    return [item.laddr.port for item in sockets if item.status == psutil.CONN_LISTEN]


def main() -> None:
    """Run a server for people."""
    parser = argparse.ArgumentParser(
        prog="scripts/opa", description="A real OPA on loopback over a folder of *.rego."
    )
    parser.add_argument("folder", nargs="?", type=Path, default=policies_folder())
    parser.add_argument(
        "--fetch", action="store_true", help="only bring the program into the user's cache"
    )
    arguments = parser.parse_args()
    try:
        if arguments.fetch:
            sys.stdout.write(f"{program()}\n")
            return
        with server(arguments.folder) as (url, _):
            sys.stdout.write(f"MOOTHALL_GUARD__POLICY_URL={url}\n")
            sys.stdout.flush()
            with suppress(KeyboardInterrupt):
                signal.pause()
    except gobuilt.Missing as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
