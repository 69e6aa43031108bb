"""Generate `moothall.pb` (messages, gRPC stubs, types) from `protos/`. Generated code is not
committed.

Use: `python scripts/protoc.py`, with grpcio-tools and mypy-protobuf installed. The wheel build runs
it too, by `hatch_build.py`.
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
    """Return the path of a protoc plugin: beside this Python, else on the PATH."""
    places = (
        sysconfig.get_path("scripts"),
        str(Path(sys.executable).parent),
        os.environ.get("PATH", os.defpath),
    )
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        raise SystemExit(f"{name} is missing: install mypy-protobuf beside {sys.executable}")
    return found


def _rewritten(source: str, packages: set[str]) -> str:
    """Return generated source whose imports of our proto packages go through `moothall.pb`.

    The type stubs call every RPC of a servicer abstract, which at run time none is: one that is not
    overridden answers UNIMPLEMENTED. So the marks go.
    """
    ours = "|".join(sorted(packages))
    source = re.sub(r"^ *@_abc_\d+\.abstractmethod\n", "", source, flags=re.MULTILINE)
    return re.sub(
        rf"^(\s*)from ((?:{ours})\.[\w.]+) import ",
        rf"\1from {PACKAGE}.\2 import ",
        source,
        flags=re.MULTILINE,
    )


def generate(root: Path = ROOT) -> Path:
    """Generate everything anew and return the package's folder; raises `SystemExit` when protoc
    fails.
    """
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
            raise SystemExit("protoc failed; what is wrong stands above")
        sources = {
            file.relative_to(out): _rewritten(file.read_text(encoding="utf-8"), packages)
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
