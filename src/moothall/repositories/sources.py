"""Sources of repositories: checks paths and URLs, resolves refs at a source, and fetches from the
origin and from public repositories for the git of a workspace. Creates repositories of our own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from moothall.config import WorkspaceSettings as Settings
from moothall.errors import InvalidRequest, Refused, RepositoryError
from moothall.processes import scratch
from moothall.repositories.clone import TrustedClone
from moothall.repositories.git_objects import Change, TreeEntry
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.patch_rules import (
    MAX_CHANGE_BYTES,
    MAX_PATCH_FILES,
    invalid_target_reason,
)
from moothall.repositories.registry import Pin, anonymous_transport, hide_reason

# Checks of paths and URLs, and refs at a source.


_SCP = re.compile(
    r"(?:[A-Za-z0-9._][A-Za-z0-9._-]*@)(?P<host>[A-Za-z0-9._][A-Za-z0-9._-]*):(?!/?/?-)[^\s:]+"
)
_BAD_REF = re.compile(r"[\x00-\x20\x7f:?*\[\\]|\.\.|@\{|//|^[-/^]|/$|\.lock$")
_SHOWN_REFS = 8


@dataclass(frozen=True, slots=True)
class Local:
    """A repository on this machine.

    top: its work tree, or the repository itself if it is bare.
    shared: the folder with its refs and objects.
    """

    top: Path
    git_dir: Path
    shared: Path


def is_url(text: str) -> bool:
    """Return whether the text is a URL of a network transport, not a path or a file: URL."""
    return (
        "://" in text or "::" in text or _SCP.fullmatch(text) is not None
    ) and not text.lower().startswith("file://")


def check_url(url: str, schemes: Sequence[str]) -> str:
    """Return a URL that is safe to pass to git. Raises `InvalidRequest` or `Refused`; the messages
    never contain a password.
    """
    if not url.isprintable() or " " in url or url.startswith("-") or "::" in url.split("/", 1)[0]:
        raise InvalidRequest(
            "the repository's URL is not valid; write https://host/path, ssh://user@host/path or "
            "user@host:path"
        )
    if _SCP.fullmatch(url):
        scheme = "ssh"
    else:
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError as error:
            raise InvalidRequest(f"the repository's URL is not valid: {error}") from error
        scheme = parts.scheme.lower()
        if scheme in {"http", "https"} and parts.username is not None:
            raise InvalidRequest(
                "the repository's URL holds a credential; name one with `moothall repo add "
                "--credential` instead"
            )
        if parts.password is not None:
            raise InvalidRequest("the repository's URL holds a password; use a key instead")
        if (
            not parts.hostname
            or parts.hostname.startswith("-")
            or (parts.username or "").startswith("-")
            or len(parts.path) < 2  # noqa: PLR2004
        ):
            raise InvalidRequest("the repository's URL needs a host and a path")
    if scheme not in schemes:
        raise Refused(
            f"repositories may not be fetched over {scheme!r}; the allowed schemes are "
            f"{', '.join(schemes)}"
        )
    return url


def check_path(text: str, schemes: Sequence[str], roots: Sequence[Path] | None) -> Path:
    """Return the resolved path of a path or file: URL below one of the roots (None: any path).

    Raises `InvalidRequest`, and `Refused` for a path outside, without reading there.
    """
    if text.lower().startswith("file://"):
        if "file" not in schemes:
            raise Refused(
                "repositories may not be fetched over 'file'; the allowed schemes are "
                f"{', '.join(schemes)}"
            )
        parts = urlsplit(text)
        if parts.hostname not in {None, "", "localhost"}:
            raise InvalidRequest("a file: URL must not name a host; write file:///path")
        text = unquote(parts.path)
    if not text or "\0" in text or text.startswith("-"):
        raise InvalidRequest(
            f"{text[:80]!r} is not a repository's path; write ./{text[:80]} if a folder has that "
            "name"
        )
    path = Path(text).resolve()
    check_inside(path, roots)
    return path


def check_inside(path: Path, roots: Sequence[Path] | None) -> None:
    """Raise `Refused` if the (resolved) path is not one of the roots or below one."""
    if roots is not None and not any(path.is_relative_to(root) for root in roots):
        raise Refused(
            f"the local path {str(path)!r} is not below an allowed root; register it with "
            "`moothall repo add`, or allow its folder in workspace.allowed_roots"
        )


def check_ref(ref: str) -> str:
    """Return a ref that is safe to pass to git. Raises `InvalidRequest`."""
    if len(ref) > 255 or _BAD_REF.search(ref):  # noqa: PLR2004 - as long as a file name
        raise InvalidRequest(f"{ref[:80]!r} is not a ref; write a branch, a tag or a commit id")
    return ref


async def find_local(git: GitRunner, path: Path) -> Local:
    """Return the repository that contains `path`. Raises `RepositoryError`."""
    if not await asyncio.to_thread(path.exists):
        raise RepositoryError(f"the repository {str(path)!r} does not exist")
    if not await asyncio.to_thread(path.is_dir):
        raise RepositoryError(f"{str(path)!r} is a file; name the repository's folder")
    result = await git.call(
        "rev-parse", "--is-inside-work-tree", "--absolute-git-dir", "--git-common-dir", cwd=path
    )
    if result.status:
        raise RepositoryError(
            f"{str(path)!r} is not a git repository; run `git init` and commit something there "
            "first"
        )
    in_tree, git_dir, shared = (
        line for line in result.out.decode(errors="surrogateescape").split("\n")[:3]
    )
    folder = Path(git_dir)
    # core.worktree may name any folder, so the work tree is the folder with the .git.
    top = (
        next((parent for parent in (path, *path.parents) if (parent / ".git").exists()), folder)
        if in_tree == "true"
        else folder
    )
    object_format = (await git.run("rev-parse", "--show-object-format", cwd=path)).strip()
    if object_format != b"sha1":
        raise RepositoryError(
            f"{str(path)!r} uses {object_format.decode()} object ids; only sha1 repositories are "
            "supported"
        )
    return Local(top, folder, (path / shared).resolve())


async def local_commit(git: GitRunner, local: Local, ref: str) -> str:
    """Return the sha of `ref` (empty: HEAD) in a local repository. Raises `RepositoryError`."""
    git_dir = f"--git-dir={local.git_dir}"
    name = check_ref(ref) if ref else "HEAD"
    result = await git.call(
        git_dir,
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        f"{name}^{{commit}}",
        cwd=local.git_dir,
    )
    if not result.status:
        return result.out.decode().split()[-1]
    listing = await git.run(
        git_dir,
        "for-each-ref",
        "--format=%(refname:short)",
        "refs/heads",
        "refs/tags",
        cwd=local.git_dir,
    )
    names = listing.decode(errors="replace").split()
    if not names:
        raise RepositoryError(
            f"the repository {str(local.top)!r} has no commits; commit something first"
        )
    raise _unknown_ref(name, str(local.top), names)


def remote_commit(refs: Mapping[str, str], url: str, ref: str) -> tuple[str, str]:
    """Return the full name and the sha of `ref` (empty: HEAD) among the refs of a URL. Raises
    `RepositoryError`.
    """
    name = check_ref(ref) if ref else "HEAD"
    for full in (name, f"refs/heads/{name}", f"refs/tags/{name}"):
        if full in refs:
            return full, refs.get(f"{full}^{{}}", refs[full])
    if not refs:
        raise RepositoryError(f"the repository {url!r} has no commits")
    heads = [full.removeprefix("refs/heads/") for full in refs if full.startswith("refs/heads/")]
    tags = [
        full.removeprefix("refs/tags/")
        for full in refs
        if full.startswith("refs/tags/") and not full.endswith("^{}")
    ]
    raise _unknown_ref(name, url, [*heads, *tags])


async def remote_refs(
    git: GitRunner, cwd: Path, url: str, env: Mapping[str, str]
) -> dict[str, str]:
    """Return all refs of a URL with their shas."""
    result = await git.call("ls-remote", "--quiet", "--", url, cwd=cwd, env=env)
    if result.status:
        raise RepositoryError(f"cannot reach the repository {url!r}: {result.reason}")
    pairs = (
        line.split("\t", 1)
        for line in result.out.decode(errors="replace").splitlines()
        if "\t" in line
    )
    return {name: sha for sha, name in pairs}


def _unknown_ref(ref: str, location: str, names: Sequence[str]) -> RepositoryError:
    excerpt, hidden_count = ", ".join(names[:_SHOWN_REFS]), len(names) - _SHOWN_REFS
    more = f" and {hidden_count} more" if hidden_count > 0 else ""
    return RepositoryError(
        f"no ref {ref[:80]!r} in {location!r}; the refs are {excerpt or 'none'}{more}"
    )


# Access of a workspace's git to the origin of its repository and to public repositories, on the
# trusted side.
#
# A credential is sent only to the origin for which the operator registered it, and no branch is
# moved.


_SHA = re.compile(r"[0-9a-f]{40}")
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Cloned:
    """The files of a commit of another repository, in the folder `name`."""

    name: str
    sha: str
    changes: tuple[Change, ...]


async def fetch_commit(
    git: GitRunner,
    clone: TrustedClone,
    url: str,
    ref: str,
    env: Mapping[str, str],
    *,
    remote_call: Callable[[], AbstractContextManager[None]] = nullcontext,
    tags: bool = True,
) -> str:
    """Fetch the commit that `ref` (empty: HEAD) names at a URL into an existing clone, and return
    its sha. Each call to the remote runs inside a `remote_call` context. Raises `RepositoryError`.
    """
    name = sha = ref
    if not _SHA.fullmatch(ref):
        with remote_call():
            refs = await remote_refs(git, clone.path, url, env)
        name, sha = remote_commit(refs, url, ref)
    if not await clone.has(sha):
        with remote_call():
            return await clone.fetch(
                url, name, protocols=env["GIT_ALLOW_PROTOCOL"], env=env, tags=tags
            )
    return sha


async def clone_public(git: GitRunner, settings: Settings, url: str, ref: str, pin: Pin) -> Cloned:
    """Fetch the files of a repository that is not registered. See `anonymous_transport`."""
    check_url(url, settings.allowed_schemes)
    with scratch() as folder:
        env = await anonymous_transport(git, folder, url, pin)
        clone = TrustedClone(folder / "clone.git", settings, git)
        await clone.create()
        sha = await fetch_commit(
            git, clone, url, ref, env, remote_call=lambda: hide_reason(url), tags=False
        )
        entries = [
            entry
            for entry in await clone.entries(sha)
            if not (entry.unpatchable_reason or _leaves_tree(entry))
        ]
        size = sum(entry.size for entry in entries)
        if len(entries) > MAX_PATCH_FILES or size > MAX_CHANGE_BYTES:
            raise Refused(
                f"the repository has {len(entries)} files with {size} bytes; a workspace takes at "
                f"most {MAX_PATCH_FILES} files with {MAX_CHANGE_BYTES} bytes"
            )
        paths = {entry.path for entry in entries}
        # Entries with odd names and links out of the tree cannot be part of a patch.
        files = [file for file in await clone.contents(sha) if file.path in paths]
    folder_name = (
        _NOT_IN_NAME.sub("-", url.rstrip("/").removesuffix(".git").rpartition("/")[2]).strip(".-")[
            :60
        ]
        or "repository"
    )
    return Cloned(
        folder_name,
        sha,
        tuple(
            Change(f"{folder_name}/{change.path}", change.mode, change.content) for change in files
        ),
    )


def _leaves_tree(entry: TreeEntry) -> bool:
    return entry.target is not None and invalid_target_reason(entry.path, entry.target) != ""


async def create_repository(path: Path, files: Mapping[str, str], message: str) -> str:
    """Create a repository at `path` with one commit of these files, and return the commit."""
    return await asyncio.to_thread(_create, path, files, message)


def _create(path: Path, files: Mapping[str, str], message: str) -> str:
    import git  # in the thread that uses it: most processes do not

    for name, text in files.items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    repository = git.Repo.init(path, initial_branch="main")
    try:
        author = git.Actor("Moothall", "moothall@localhost")
        repository.index.add(sorted(files))
        return repository.index.commit(message, author=author, committer=author).hexsha
    finally:
        repository.close()
