"""Wheels that contain a part of a file, as in the package index."""

from __future__ import annotations

import zipfile
from pathlib import Path


def make_part(folder: Path, number: int, data: bytes) -> str:
    """Create the wheel of the `number`-th part in `folder`; return its requirement for pip."""
    name, info = f"some_part{number}", f"some_part{number}-1.0.dist-info"
    with zipfile.ZipFile(
        folder / f"{name}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED
    ) as archive:
        archive.writestr(f"{name}/data/part{number:02d}.bin", data)
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('nobody imports this')")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return f"some-part{number}==1.0"
