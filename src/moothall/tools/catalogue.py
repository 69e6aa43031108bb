"""The catalogue entries of the tools that every workspace has (files, git and tests), in the order
of prompts. Further families of tools are in `moothall.toolkits`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

from pydantic import BaseModel

from moothall.domain.tool import Grant
from moothall.tools import code_tools, schemas
from moothall.tools.spec import Caps, Cost, Danger, Example, Requirements, ToolSpec

_READ_ONLY, _WRITE_FILES = Requirements(file_system="read"), Requirements(file_system="write")
_RUN_PROGRAMS = Requirements(os_access=True, file_system="write")
_USE_NETWORK = Requirements(network_access=True, file_system="write")
_PASSED = {
    "verdict": "passed",
    "passed": 3,
    "failed": 0,
    "errored": 0,
    "skipped": 0,
    "red": [],
    "exit_code": 0,
    "output": "3 passed",
}
_SHA = "3f2a9c1e" * 5
__all__ = [
    "CATALOGUE",
    "FILE_CHANGING_TOOLS",
    "Danger",
    "ToolSpec",
    "describe",
    "is_granted",
    "list_tools",
]


def _file(
    name: str,
    summary: str,
    model: type[schemas.Arguments],
    output: type[BaseModel],
    example: Example,
    *,
    core: bool = False,
    writes: tuple[str, ...] = (),
    second_path_argument: str = "",
    version: str = "1.0.0",
) -> ToolSpec:
    """`second_path_argument`: a second argument that holds a path or glob. `writes`: see
    `ToolSpec`.
    """
    return ToolSpec(
        name=f"files.{name}",
        summary=summary,
        arguments=model,
        output=output,
        danger=Danger.WRITE if writes else Danger.READ,
        caps=Caps(20),
        requirements=_WRITE_FILES if writes else _READ_ONLY,
        tags=("files", "change" if writes else "look"),
        version=version,
        examples=(example,),
        profiles=(*(("core",) if core else ()), "coding", *(() if writes else ("reading",))),
        paths=("path", second_path_argument) if second_path_argument else ("path",),
        writes=writes,
    )


def _git(  # noqa: PLR0917 - read as a row of a table
    name: str,
    summary: str,
    model: type[schemas.Arguments],
    output: type[BaseModel],
    example: Example,
    danger: Danger = Danger.WRITE,
    *,
    paths: tuple[str, ...] = (),
    core: bool = False,
) -> ToolSpec:
    reads_only, outside = danger is Danger.READ, danger is Danger.OUTSIDE
    return ToolSpec(
        name=f"git.{name}",
        summary=summary,
        arguments=model,
        output=output,
        danger=danger,
        caps=Caps(300 if outside else 30),
        requirements=_READ_ONLY if reads_only else _USE_NETWORK if outside else _WRITE_FILES,
        tags=("git", "remote") if outside else ("git", "look" if reads_only else "change"),
        examples=(example,),
        profiles=("remote",)
        if outside
        else (*(("core",) if core else ()), "coding", *(("reading",) if reads_only else ())),
        paths=paths,
        cost=Cost.LOW,
    )


def _tests(
    name: str,
    summary: str,
    model: type[schemas.Arguments],
    example: Example,
    *,
    paths: tuple[str, ...] = (),
    core: bool = False,
) -> ToolSpec:
    return ToolSpec(
        name=f"tests.{name}",
        summary=summary,
        arguments=model,
        output=schemas.TestsRun,
        danger=Danger.EXECUTE,
        caps=Caps(300),
        requirements=_RUN_PROGRAMS,
        tags=("tests", name),
        examples=(example,),
        profiles=("core", "coding") if core else ("coding",),
        paths=paths,
        cost=Cost.HIGH,
    )


SPECS: Final = (
    _file(
        "read",
        "lines of a file",
        schemas.FilesRead,
        schemas.FileContent,
        Example(
            "the first two lines",
            {"path": "src/utils.py", "lines": 2},
            {
                "path": "src/utils.py",
                "content": "import re\n\n",
                "start": 1,
                "total_lines": 40,
                "truncated": True,
            },
        ),
        core=True,
    ),
    _file(
        "write",
        "make a file or replace all of it",
        schemas.FilesWrite,
        schemas.Written,
        Example(
            "a new file",
            {"path": "src/a.py", "content": "A = 1\n"},
            {"path": "src/a.py", "bytes": 6},
        ),
        core=True,
        writes=("path",),
    ),
    _file(
        "append",
        "add to the end of a file",
        schemas.FilesWrite,
        schemas.Written,
        Example(
            "one more line",
            {"path": "src/a.py", "content": "B = 2\n"},
            {"path": "src/a.py", "bytes": 12},
        ),
        core=True,
        writes=("path",),
    ),
    _file(
        "edit",
        "replace the text old, which occurs count times, by new",
        schemas.FilesEdit,
        schemas.Replaced,
        Example(
            "one place",
            {"path": "src/a.py", "old": "A = 1", "new": "A = 3"},
            {"path": "src/a.py", "replaced": 1},
        ),
        core=True,
        writes=("path",),
        version="1.2.0",
    ),
    _file(
        "define",
        "replace the function, method or class of that name by content, or add it",
        schemas.FilesDefine,
        schemas.Defined,
        Example(
            "a method",
            {
                "path": "src/cart.py",
                "name": "Cart.count",
                "content": "def count(self):\n    return len(self.items)\n",
            },
            {"path": "src/cart.py", "name": "Cart.count", "replaced": True, "start": 12, "end": 13},
        ),
        core=True,
        writes=("path",),
    ),
    _file(
        "list",
        "names in a folder",
        schemas.FilesList,
        schemas.Entries,
        Example(
            "a folder",
            {"path": "src"},
            {"path": "src", "entries": ["src/a.py"], "truncated": False},
        ),
        core=True,
        second_path_argument="glob",
    ),
    _file(
        "search",
        "lines that match a regular expression",
        schemas.FilesSearch,
        schemas.Matches,
        Example(
            "where it is defined",
            {"pattern": "^def total"},
            {
                "matches": [{"path": "src/a.py", "line": 7, "text": "def total(rows):"}],
                "truncated": False,
            },
        ),
        core=True,
        second_path_argument="glob",
    ),
    _file(
        "delete",
        "remove a file or an empty folder",
        schemas.FilesPath,
        schemas.Deleted,
        Example("a file", {"path": "src/old.py"}, {"path": "src/old.py", "deleted": True}),
        writes=("path",),
    ),
    _file(
        "mkdir",
        "make a folder",
        schemas.FilesPath,
        schemas.Place,
        Example("a folder", {"path": "docs"}, {"path": "docs"}),
        writes=("path",),
    ),
    _file(
        "info",
        "size and kind of a file",
        schemas.FilesPath,
        schemas.PathInfo,
        Example(
            "a file",
            {"path": "src/a.py"},
            {"path": "src/a.py", "type": "file", "bytes": 12, "executable": False, "lines": 2},
        ),
    ),
    _file(
        "diff",
        "how two files differ",
        schemas.FilesDiff,
        schemas.Difference,
        Example(
            "two files",
            {"path": "a.txt", "other": "b.txt"},
            {"diff": "--- a.txt\n+++ b.txt\n@@ -1 +1 @@\n-x\n+y\n", "truncated": False},
        ),
        second_path_argument="other",
    ),
    _git(
        "status",
        "what changed",
        schemas.NoArguments,
        schemas.GitStatus,
        Example(
            "nothing changed yet",
            {},
            {"branch": "work", "head": _SHA, "clean": True, "changed": []},
        ),
        Danger.READ,
    ),
    _git(
        "diff",
        "your changes so far",
        schemas.GitDiff,
        schemas.Difference,
        Example("nothing changed yet", {}, {"against": _SHA, "diff": "", "truncated": False}),
        Danger.READ,
        core=True,
    ),
    _git(
        "log",
        "the newest commits",
        schemas.GitLog,
        schemas.GitLogEntries,
        Example(
            "the newest",
            {"limit": 1},
            {
                "branch": "work",
                "commits": [
                    {"commit": _SHA, "author": "A", "date": "2026-01-01", "subject": "begin"}
                ],
            },
        ),
        Danger.READ,
    ),
    _git(
        "add",
        "stage files",
        schemas.GitAdd,
        schemas.GitAdded,
        Example("one file", {"paths": ["src/a.py"]}, {"added": ["src/a.py"]}),
        paths=("paths",),
    ),
    _git(
        "commit",
        "commit what is staged",
        schemas.GitCommit,
        schemas.GitCommitted,
        Example(
            "a commit",
            {"message": "Add a"},
            {"commit": _SHA, "branch": "work", "files": ["src/a.py"]},
        ),
    ),
    _git(
        "branch",
        "make a branch",
        schemas.GitBranch,
        schemas.GitPlace,
        Example("a branch", {"name": "fix-login"}, {"branch": "fix-login", "commit": _SHA}),
    ),
    _git(
        "checkout",
        "go to a branch or commit",
        schemas.GitCheckout,
        schemas.GitPlace,
        Example(
            "one commit back", {"ref": "HEAD~1"}, {"branch": "at-3f2a9c1e3f2a", "commit": _SHA}
        ),
    ),
    _git(
        "clone",
        "put another repository's files into a folder of its name",
        schemas.GitClone,
        schemas.GitCloned,
        Example(
            "a repository",
            {"url": "https://host.example/team/tools.git"},
            {"path": "tools", "commit": _SHA, "files": 12},
        ),
        Danger.OUTSIDE,
    ),
    _git(
        "pull",
        "fetch and merge the remote's default branch",
        schemas.NoArguments,
        schemas.GitPulled,
        Example("what is new", {}, {"branch": "work", "commit": _SHA, "files": ["src/a.py"]}),
        Danger.OUTSIDE,
    ),
    _git(
        "push",
        "make the new branch moothall/<branch> at the remote",
        schemas.GitPush,
        schemas.GitPushed,
        Example(
            "a branch",
            {"branch": "fix-login"},
            {
                "branch": "moothall/fix-login",
                "commit": _SHA,
                "to": "https://host.example/team/app.git",
            },
        ),
        Danger.OUTSIDE,
    ),
    _tests(
        "pytest",
        "run Python tests",
        schemas.RunPytest,
        Example("one file of tests", {"paths": ["tests/test_a.py"]}, _PASSED),
        paths=("paths",),
        core=True,
    ),
    _tests("npm", "run npm test", schemas.NoArguments, Example("all tests", {}, _PASSED)),
    _tests("go", "run go test", schemas.NoArguments, Example("all tests", {}, _PASSED)),
    _tests("cargo", "run cargo test", schemas.NoArguments, Example("all tests", {}, _PASSED)),
    _tests(
        "make",
        "run a make target",
        schemas.RunMake,
        Example("a target", {"target": "test"}, _PASSED),
    ),
)


CATALOGUE: Final[Mapping[str, ToolSpec]] = {spec.name: spec for spec in (*SPECS, *code_tools.SPECS)}
FILE_CHANGING_TOOLS: Final = frozenset(
    {"files.store", *(spec.name for spec in SPECS if spec.category == "files" and spec.writes)}
)
"""The names of the tools that change files. `files.store` is not in the catalogue: tools outside
the workspace store their results with it.
"""


def is_granted(grant: Grant, tool: str) -> bool:
    """Whether the grant covers the tool."""
    return any(fnmatchcase(tool, pattern) for pattern in grant.tools)


def intersection(grant: Grant, by: Grant) -> Grant:
    """Return what both grants allow: the tools of `grant` that `by` covers too, without the paths
    that either protects.
    """
    tools = tuple(tool for tool in grant.tools if is_granted(by, tool))
    return Grant(tools, tuple(dict.fromkeys((*grant.protected, *by.protected))), grant.judged)


def list_tools(
    grant: Grant,
    *,
    core: bool = False,
    excluded: Collection[str] = (),
    catalogue: Mapping[str, ToolSpec] = CATALOGUE,
) -> tuple[ToolSpec, ...]:
    """Return the tools that a grant covers, in catalogue order. `excluded` names tools to leave
    out, such as those disabled for a tenant; `core` selects only the few for small context windows.
    """
    return tuple(
        spec
        for spec in catalogue.values()
        if spec.name not in excluded and is_granted(grant, spec.name) and (spec.core or not core)
    )


def describe(specs: Iterable[ToolSpec]) -> str:
    """Return one line for each tool, for a prompt. The same specs give the same bytes."""
    return "\n".join(f"{spec.signature}  {spec.summary}" for spec in specs)
