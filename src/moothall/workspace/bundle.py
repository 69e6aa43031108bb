"""The code in every sandbox: the package `sandbox_runtime`, compiled once per process, and the
source of the plugins that report test cases, for the project's own interpreter.

It is compiled outside, because a sandbox cannot write bytecode and would compile it again for each
workspace.
"""

from __future__ import annotations

import py_compile
import shutil
from importlib.util import find_spec
from pathlib import Path

from moothall import sandbox_runtime
from moothall.sandbox_runtime import syntax
from moothall.sandbox_runtime.plugins import FOLDER as REPORTERS

INSIDE = "/opt/moothall"
_RUNTIME_FOLDER = Path(sandbox_runtime.__file__).parent


def bundle(folder: Path) -> None:
    """Write the sandbox runtime to the new folder `folder`, as bytecode without source that every
    uid can read, and the plugins to its `plugins`.
    """
    for subfolder in (
        folder,
        folder / "moothall",
        folder / "moothall" / "sandbox_runtime",
        folder / "plugins",
        folder / "plugins" / "bin",
    ):
        subfolder.mkdir()
        subfolder.chmod(0o755)
    for source in (_RUNTIME_FOLDER.parent / "__init__.py", *_RUNTIME_FOLDER.glob("*.py")):
        name = source.relative_to(_RUNTIME_FOLDER.parent.parent)
        target = folder / name.with_suffix(".pyc")
        py_compile.compile(
            str(source),
            cfile=str(target),
            dfile=str(name),
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
        target.chmod(0o644)
    for source in (*REPORTERS.glob("moothall_*"), *REPORTERS.glob("bin/*")):
        target = folder / "plugins" / source.relative_to(REPORTERS)
        shutil.copyfile(source, target)
        target.chmod(0o755 if target.parent.name == "bin" else 0o644)


def grammars() -> tuple[tuple[Path, str], ...]:
    """Return the packages that parse source code, and their paths in a sandbox."""
    specs = {name: find_spec(name) for name in syntax.PACKAGES}
    return tuple(
        (Path(spec.origin).parent, f"{syntax.GRAMMARS}/{name}")
        for name, spec in specs.items()
        if spec and spec.origin
    )
