"""What package managers need to read while something is set up: the operator's indexes and certificates."""

from __future__ import annotations

from pathlib import Path

from moothall.config import package_environment, package_files
from moothall.sandbox.spawn import own


def package_sources(folder: Path, uid: int | None, *, network: bool) -> tuple[tuple[tuple[Path, str], ...], dict[str, str]]:
    """Return what to mount read-only and the variables that say where it lies; nothing without a network."""
    if not network:
        return (), {}
    variables = package_environment()
    binds = [(Path(value), value) for value in variables.values() if value.startswith("/") and Path(value).exists()]
    for number, (variable, path) in enumerate(package_files().items()):
        copy = folder / f"{number}.conf"  # a copy: the dropped uid may not read the operator's own
        copy.write_bytes(path.read_bytes())
        own(copy, uid)
        variables[variable] = f"/opt/config/{number}"
        binds.append((copy, variables[variable]))
    return tuple(binds), variables
