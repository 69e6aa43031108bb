"""Checkouts and changes are converted like by git itself: every case is compared with a real
git.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from moothall.config import WorkspaceSettings
from moothall.repositories.changes import ChangeCaps, ChangeScan
from moothall.repositories.clone import TrustedClone
from moothall.repositories.git_objects import Change, Settings, conversion
from support.repos import Repo, make_repo
from support.surveys import survey_all

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

ATTRIBUTES = """
*.bat text eol=crlf
*.unix text eol=lf
*.auto text=auto
*.autocrlf text=auto eol=crlf
*.old crlf
*.legacy crlf=input
*.raw -text
*.only eol=crlf
*.text text
[attr]windows text eol=crlf
*.macro windows
*.w16 text working-tree-encoding=UTF-16
*.l16 text working-tree-encoding=UTF-16LE-BOM eol=crlf
*.b16 working-tree-encoding=UTF-16BE
*.latin working-tree-encoding=ISO-8859-1
"""
ENDINGS = [
    "bat",
    "unix",
    "auto",
    "autocrlf",
    "old",
    "legacy",
    "raw",
    "only",
    "text",
    "macro",
    "w16",
    "l16",
    "b16",
    "latin",
    "strange",
    "none",
]
CONTENTS = {
    "lf": b"one\ntwo\n",
    "crlf": b"one\r\ntwo\r\n",
    "mixed": b"one\r\ntwo\n",
    "lone": b"one\rtwo\n",
    "binary": bytes(range(1, 32)) + b"\n",
    "nul": b"a\0b\n",
    "umlaut": "größer\n".encode(),
    "empty": b"",
    "end": b"one\n\x1a",
}


@pytest.fixture
def clone(tmp_path: Path) -> TrustedClone:
    return TrustedClone(tmp_path / "data" / "c.git", WorkspaceSettings())


def files() -> dict[str, bytes]:
    contents = {
        f"{name}.{ending}": content for ending in ENDINGS for name, content in CONTENTS.items()
    }
    return {
        **contents,
        "deep/er/lf.none": b"one\ntwo\n",
        "deep/.gitattributes": b"*.none text eol=crlf\n",
    }


def store(repo: Repo, contents: dict[str, bytes]) -> str:
    """Commit blobs unaltered, whatever the attributes."""
    lines = [f"100644 {repo.blob(content)}\t{path}" for path, content in contents.items()]
    repo.git(
        "update-index",
        "--add",
        "-z",
        "--index-info",
        stdin="".join(f"{line}\0" for line in lines).encode(),
    )
    repo.git("commit", "--quiet", "--message", "as they are")
    return repo.head


async def test_a_checkout_is_byte_for_byte_the_same_as_by_git(
    clone: TrustedClone, tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "r", {".gitattributes": ATTRIBUTES})
    sha = await clone.fetch(str(repo.path), store(repo, files()))
    repo.git("clone", "--quiet", str(repo.path), str(tmp_path / "git"))
    await clone.checkout(sha, tmp_path / "ours")
    differing = [
        path
        for path in files()
        if (tmp_path / "ours" / path).read_bytes() != (tmp_path / "git" / path).read_bytes()
    ]
    assert differing == []
    assert (tmp_path / "ours/lf.bat").read_bytes() == b"one\r\ntwo\r\n"
    assert (tmp_path / "ours/umlaut.latin").read_bytes() == "größer\n".encode("latin-1")
    assert (tmp_path / "ours/lf.w16").read_bytes() == "one\ntwo\n".encode("utf-16")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
async def test_a_changed_file_is_stored_as_git_would_add_it(
    clone: TrustedClone, tmp_path: Path, end: str
) -> None:
    repo = make_repo(tmp_path / "r", {".gitattributes": ATTRIBUTES})
    base = {
        path: content
        for path, content in files().items()
        if not path.startswith(("binary", "nul", "lone", "end"))
    }
    sha = await clone.fetch(str(repo.path), store(repo, base))
    theirs, ours, upper = tmp_path / "git", tmp_path / "ours", tmp_path / "upper"
    repo.git("clone", "--quiet", str(repo.path), str(theirs))
    await clone.checkout(sha, ours)
    for path in (*base, *(f"fresh.{ending}" for ending in ENDINGS)):
        content_before = (ours / path).read_bytes() if path in base else b""
        wide = path.rpartition(".")[2] in {"w16", "l16", "b16"}
        codec = {"w16": "utf-16", "l16": "utf-16-le", "b16": "utf-16-be"}.get(
            path.rpartition(".")[2], "utf-8"
        )
        added = f"more{end}".encode(codec)
        if wide and content_before:
            added = added.removeprefix(b"\xff\xfe")
        elif path == "fresh.l16":
            added = b"\xff\xfe" + added
        for tree in (theirs, upper):
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content_before + added)
    Repo(theirs).git("add", "--all")
    expected_tree = Repo(theirs).git("write-tree")
    caps = ChangeCaps(file_bytes=10_000, total_bytes=1_000_000)
    changes = survey_all(ChangeScan(upper, list(base), caps, base=ours)).changes
    patch = await clone.commit_changes(sha, await clone.clean(sha, changes), "more")
    stored = (await clone.call("rev-parse", f"{patch.commit_sha}^{{tree}}")).out.decode().strip()
    await clone.fetch(
        str(theirs), Repo(theirs).git("commit-tree", expected_tree, "-p", sha, "-m", "theirs")
    )
    assert (await clone.call("diff", "--stat", stored, expected_tree)).out == b""


async def test_a_file_that_was_only_touched_is_unchanged(
    clone: TrustedClone, tmp_path: Path
) -> None:
    repo = make_repo(
        tmp_path / "r", {".gitattributes": "*.bat eol=crlf\n*.w16 working-tree-encoding=UTF-16\n"}
    )
    sha = await clone.fetch(
        str(repo.path), repo.commit({"a.bat": "one\r\n", "a.w16": "größer\n".encode("utf-16")})
    )
    await clone.checkout(sha, tmp_path / "ours")
    touched = [
        Change(path, "100644", (tmp_path / "ours" / path).read_bytes())
        for path in ("a.bat", "a.w16")
    ]
    assert await clone.smudge(sha, await clone.clean(sha, touched)) == touched
    assert (await clone.commit_changes(sha, await clone.clean(sha, touched), "touched")).diff == ""
    # Written by a git that ignores the attribute.
    plain = [Change("a.w16", "100644", "größer\n".encode())]
    assert await clone.clean(sha, plain) == plain


async def test_a_changed_attribute_applies_to_the_files_changed_with_it(
    clone: TrustedClone, tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "r", {".gitattributes": "*.bat eol=crlf\n", "a.bat": "one\n"})
    sha = await clone.fetch(str(repo.path), repo.head)
    changes = [Change("a.bat", "100644", b"one\r\ntwo\r\n"), Change("b.cmd", "100644", b"one\r\n")]
    rules = Change(".gitattributes", "100644", b"*.cmd eol=crlf\n")
    assert [change.content for change in await clone.clean(sha, changes)] == [
        b"one\ntwo\n",
        b"one\r\n",
    ]
    assert [change.content for change in await clone.clean(sha, [*changes, rules])] == [
        b"one\r\ntwo\r\n",
        b"one\n",
        rules.content,
    ]


@pytest.mark.parametrize(
    ("attributes", "settings", "crlf"),
    [
        ({}, Settings("true"), True),
        ({}, Settings("input"), False),
        ({}, Settings("false", "crlf"), False),
        ({"text": "set"}, Settings("false", "crlf"), True),
        ({"text": "auto"}, Settings("false", "crlf"), True),
        ({"text": "set"}, Settings("input", "crlf"), False),
        ({"text": "set", "eol": "lf"}, Settings("true"), False),
        ({"text": "unset", "eol": "crlf"}, Settings("true"), False),
        ({"working-tree-encoding": "idna"}, Settings("true"), True),
    ],
)
def test_settings_of_a_person_apply_if_no_attribute_does(
    attributes: dict[str, str], settings: Settings, *, crlf: bool
) -> None:
    assert (conversion(attributes, settings).smudge(b"a\n") == b"a\r\n") is crlf
