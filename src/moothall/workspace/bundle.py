"""The executor's code as it lies in a sandbox: its own modules and no others, compiled once a process; and beside it, as
source for whatever interpreter a project has, what reports the cases of its tests.

Compiled here, since nothing can be inside: a Python that finds no bytecode would compile it again for every workspace.
"""

from __future__ import annotations

import py_compile
import shutil
from importlib.util import find_spec
from pathlib import Path

from moothall.tools.plugins import FOLDER as REPORTERS

INSIDE = "/opt/moothall"
_MODULES = (
    "moothall",
    "moothall.sandbox",
    "moothall.sandbox.inside",
    "moothall.sandbox.landlock",
    "moothall.sandbox.processes",
    "moothall.sandbox.procs",
    "moothall.tools",
    "moothall.tools.cases",
    "moothall.tools.checks",
    "moothall.tools.define",
    "moothall.tools.edits",
    "moothall.tools.files",
    "moothall.tools.findings",
    "moothall.tools.paths",
    "moothall.tools.spans",
    "moothall.tools.streams",
    "moothall.tools.survey",
    "moothall.tools.syntax",
    "moothall.tools.texts",
    "moothall.workspace",
    "moothall.workspace.checking",
    "moothall.workspace.coder",
    "moothall.workspace.executor",
    "moothall.workspace.face",
    "moothall.workspace.fullpython",
    "moothall.workspace.protocol",
    "moothall.workspace.talk",
    "moothall.workspace.wasm_inside",
)


def bundle(folder: Path) -> None:
    """Put the executor's modules into `folder`, a new one, as bytecode without source, for every uid to read; and the reporters
    of cases into its `plugins`.
    """
    folder.mkdir()
    folder.chmod(0o755)
    reporters = folder / "plugins"
    reporters.mkdir()
    reporters.chmod(0o755)
    for source in REPORTERS.iterdir():
        if source.name.startswith("moothall_"):
            shutil.copyfile(source, reporters / source.name)
            (reporters / source.name).chmod(0o644)
    for name in _MODULES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise FileNotFoundError(f"module {name} is missing: the installation is not whole")
        package = spec.submodule_search_locations is not None
        target = (
            folder.joinpath(*name.split("."), "__init__.pyc")
            if package
            else folder.joinpath(*name.split(".")).with_suffix(".pyc")
        )
        if package:
            target.parent.mkdir()
            target.parent.chmod(0o755)
        py_compile.compile(
            spec.origin,
            cfile=str(target),
            dfile=name,
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
        target.chmod(0o644)
