"""Generate `moothall.pb` (messages, gRPC stubs, types) from `protos/`. Generated code is not
committed.

Use: `python scripts/protoc.py`, with grpcio-tools and mypy-protobuf installed. The wheel build runs
it too, in `hatch_build.py`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "moothall.pb"


def _plugin(name: str) -> str:
    """Return the path of a protoc plugin: next to this Python, or on PATH."""
    folders = (
        sysconfig.get_path("scripts"),
        str(Path(sys.executable).parent),
        os.environ.get("PATH", os.defpath),
    )
    path = shutil.which(name, path=os.pathsep.join(folders))
    if path is None:
        raise SystemExit(f"{name} is missing: install mypy-protobuf next to {sys.executable}")
    return path


def _rewrite(source: str, packages: set[str]) -> str:
    """Return generated source that imports the proto packages from `moothall.pb`.

    The type stubs declare every RPC of a servicer as abstract. At run time an RPC that is not
    overridden returns UNIMPLEMENTED, so the decorators are removed.
    """
    names = "|".join(sorted(packages))
    source = re.sub(r"^ *@_abc_\d+\.abstractmethod\n", "", source, flags=re.MULTILINE)
    return re.sub(
        rf"^(\s*)from ((?:{names})\.[\w.]+) import ",
        rf"\1from {PACKAGE}.\2 import ",
        source,
        flags=re.MULTILINE,
    )


def generate(root: Path = ROOT) -> Path:
    """Generate the package and return its folder; raises `SystemExit` if protoc fails."""
    protos = root / "protos"
    target = root / "src" / Path(*PACKAGE.split("."))
    files = sorted(protos.rglob("*.proto"))
    packages = {file.relative_to(protos).parts[0] for file in files}
    google = Path(protoc.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        arguments = [
            f"-I{protos}",
            f"-I{google}",
            f"--plugin=protoc-gen-mypy={_plugin('protoc-gen-mypy')}",
            f"--plugin=protoc-gen-mypy_grpc={_plugin('protoc-gen-mypy_grpc')}",
            *(f"--{kind}_out={out}" for kind in ("python", "grpc_python")),
            f"--mypy_out=quiet:{out}",
            f"--mypy_grpc_out=quiet,only_async:{out}",
            *map(str, files),
        ]
        if protoc.main(["protoc", *arguments]) != 0:
            raise SystemExit("protoc failed; its message is above")
        sources = {
            file.relative_to(out): _rewrite(file.read_text(encoding="utf-8"), packages)
            for file in out.rglob("*.py*")
        }
    for folder in {parent for file in sources for parent in file.parents}:
        sources[folder / "__init__.py"] = '"""Generated from protos/."""\n'
    for name, source in sources.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(source, encoding="utf-8")
    for file in [*target.rglob("*.py"), *target.rglob("*.pyi")]:
        if file.relative_to(target) not in sources:
            file.unlink()
    return target


if __name__ == "__main__":
    print(f"generated {generate()}")
