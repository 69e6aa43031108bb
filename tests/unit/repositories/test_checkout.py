from __future__ import annotations

import hashlib
from pathlib import Path

from moothall.config import Settings, WorkspaceSettings
from moothall.domain.repository import Base, Profile
from moothall.repositories.checkout import check_out
from moothall.repositories.clone import TrustedClone
from support.repos import make_repo


def pointer(content: bytes) -> tuple[str, str]:
    oid = hashlib.sha256(content).hexdigest()
    return (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(content)}\n",
        oid,
    )


async def test_lfs_files_of_the_source_are_complete_and_missing_ones_are_counted(
    tmp_path: Path,
) -> None:
    content_pointer, oid = pointer(b"the content")
    missing, _ = pointer(b"not here")
    false, wrong_oid = pointer(b"as it was")
    repo = make_repo(
        tmp_path / "r",
        {
            ".gitattributes": "*.bin filter=lfs diff=lfs\n",
            "a.bin": content_pointer,
            "b.bin": missing,
            "c.bin": false,
            "d.txt": "d",
        },
    )
    for name, content in ((oid, b"the content"), (wrong_oid, b"otherwise")):
        store = repo.path / ".git/lfs/objects" / name[:2] / name[2:4]
        store.mkdir(parents=True)
        (store / name).write_bytes(content)
    clone = TrustedClone(tmp_path / "repos" / "r.git", WorkspaceSettings())
    base = Base("r", await clone.fetch(str(repo.path), "HEAD"), Profile(), origin=str(repo.path))
    messages: list[str] = []
    await check_out(
        clone, base, tmp_path / "out", Settings(data_dir=tmp_path / "data"), messages.append
    )
    assert (tmp_path / "out/a.bin").read_bytes() == b"the content"
    assert (tmp_path / "out/b.bin").read_text() == missing
    assert (tmp_path / "out/c.bin").read_text() == false
    assert messages == [
        f"2 of 3 LFS files are pointers only: their content is not in {repo.path} (git lfs pull)"
    ]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        ".gitattributes",
        "a.bin",
        "b.bin",
        "c.bin",
        "d.txt",
    ]
