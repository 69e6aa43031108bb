"""Lets PyTorch's wheel from PyPI run without its 5 GB of CUDA. Run in vLLM's own environment, once
after installing.

    python scripts/vllm/cuda_stand_ins.py

That wheel is linked against CUDA's libraries and does not load where they are missing, although
nothing calls them on a machine without a GPU; PyTorch's CPU wheel is not on PyPI. So each missing
library gets a stand-in beside PyTorch's own:
the functions that PyTorch looks for, all of which answer 100, CUDA's code for "no device". Needs
gcc and readelf.
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
_NEEDED = re.compile(rf"NEEDED.*\[(lib{_CUDA}[^\]]*)\]")
_FUNCTION = re.compile(rf"FUNC\s+GLOBAL\s+DEFAULT\s+UND\s+(_*{_CUDA}\w+)(?:@(\S+))?")
_NO_DEVICE = 100


def wanted(folder: Path) -> dict[str, dict[str, set[str]]]:
    """Return what the libraries in `folder` look for: library → symbol version → functions."""
    libraries: dict[str, dict[str, set[str]]] = {}
    functions: defaultdict[str, set[str]] = defaultdict(set)
    for own in folder.glob("lib*.so*"):
        if re.match(f"lib{_CUDA}", own.name):
            continue  # a stand-in of an earlier run
        read = subprocess.run(  # noqa: S603 - our own path
            ["readelf", "-dW", "--dyn-syms", own],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
        )
        libraries |= {name: {} for name in _NEEDED.findall(read.stdout)}
        for name, version in _FUNCTION.findall(read.stdout):
            functions[version].add(name)
    for version, names in functions.items():
        # A version is named after its library, but for NVSHMEM's; a function without one may stand
        # in any library.
        home = (
            version
            if version in libraries
            else next(name for name in libraries if (version or "nccl").lower() in name)
        )
        libraries[home].setdefault(version, set()).update(names)
    return libraries


def build(library: Path, functions: dict[str, set[str]], scratch: Path) -> None:
    """Compile one stand-in."""
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
    if named := [version for version in functions if version]:
        versions.write_text("\n".join(f"{version} {{ global: *; }};" for version in named))
        command.append(f"-Wl,--version-script={versions}")
    subprocess.run(command, check=True)  # noqa: S603 - our own source


def main() -> int:
    """Write the stand-ins and try PyTorch with them; return the exit code."""
    folder = Path(sysconfig.get_path("platlib")) / "torch" / "lib"
    with TemporaryDirectory() as scratch:
        for name, functions in wanted(folder).items():
            build(folder / name, functions, Path(scratch))
    trial = (
        "import torch; assert not torch.cuda.is_available(); assert float(torch.ones(3) @ "
        "torch.ones(3)) == 3"
    )
    return subprocess.run([sys.executable, "-c", trial], check=False).returncode  # noqa: S603 - our own words


if __name__ == "__main__":
    sys.exit(main())
