"""Make PyTorch's wheel from PyPI usable without its 5 GB of CUDA. Run it in the environment of
vLLM, once after installing.

    python scripts/vllm/cuda_stand_ins.py

The wheel is linked with the libraries of CUDA and cannot be loaded without them, although nothing
calls them on a machine without a GPU. The CPU wheel of PyTorch is not on PyPI. So a substitute for
each missing library is created next to those of PyTorch. Each of its functions returns 100, the
code of CUDA for "no device". It needs gcc and readelf.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

_CUDA = r"(?:cu|nv|nccl)"
_REQUIRED_LIBRARY = re.compile(rf"NEEDED.*\[(lib{_CUDA}[^\]]*)\]")
_FUNCTION = re.compile(rf"FUNC\s+GLOBAL\s+DEFAULT\s+UND\s+(_*{_CUDA}\w+)(?:@(\S+))?")
_NO_DEVICE = 100


def find_functions(folder: Path) -> dict[str, dict[str, set[str]]]:
    """Return the CUDA functions that PyTorch imports: library → symbol version → functions."""
    libraries: dict[str, dict[str, set[str]]] = {}
    functions: defaultdict[str, set[str]] = defaultdict(set)
    for file in folder.glob("lib*.so*"):
        if re.match(f"lib{_CUDA}", file.name):
            continue  # a substitute from an earlier run
        output = subprocess.run(  # noqa: S603 - a constant command
            ["readelf", "-dW", "--dyn-syms", file],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
        )
        libraries |= {name: {} for name in _REQUIRED_LIBRARY.findall(output.stdout)}
        for name, version in _FUNCTION.findall(output.stdout):
            functions[version].add(name)
    for version, names in functions.items():
        # A version has the name of its library, except for NVSHMEM. Without a version, any library
        # may contain the function.
        library = (
            version
            if version in libraries
            else next(name for name in libraries if (version or "nccl").lower() in name)
        )
        libraries[library].setdefault(version, set()).update(names)
    return libraries


def build(library: Path, functions: dict[str, set[str]], scratch: Path) -> None:
    """Compile one substitute."""
    source, versions = scratch / "stand_in.c", scratch / "versions.map"
    names = sorted(name for group in functions.values() for name in group)
    source.write_text("\n".join(f"int {name}(void) {{ return {_NO_DEVICE}; }}" for name in names))
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        "-O1",
        "-w",
        "-fno-builtin",
        f"-Wl,-soname,{library.name}",
        source,
        "-o",
        library,
    ]
    if named_versions := [version for version in functions if version]:
        versions.write_text("\n".join(f"{version} {{ global: *; }};" for version in named_versions))
        command.append(f"-Wl,--version-script={versions}")
    subprocess.run(command, check=True)  # noqa: S603 - a generated source


def main() -> int:
    """Create the substitutes, test PyTorch with them, and return the exit code."""
    folder = Path(sysconfig.get_path("platlib")) / "torch" / "lib"
    with TemporaryDirectory() as scratch:
        for name, functions in find_functions(folder).items():
            build(folder / name, functions, Path(scratch))
    test_code = (
        "import torch; assert not torch.cuda.is_available(); assert float(torch.ones(3) @ "
        "torch.ones(3)) == 3"
    )
    return subprocess.run([sys.executable, "-c", test_code], check=False).returncode  # noqa: S603 - a constant command


if __name__ == "__main__":
    sys.exit(main())
