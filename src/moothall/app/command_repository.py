"""The repository of a command: finding it, running its checks once on the base, and applying
diffs to its files.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from moothall.app.preflight import NamedRepository
from moothall.app.repositories import trusted_repositories
from moothall.concurrency import leaves
from moothall.config import Settings
from moothall.domain import codec
from moothall.domain.ids import LOCAL, tenant_of
from moothall.domain.repository import Base, Prepared
from moothall.domain.task import RepositoryRef
from moothall.errors import (
    ConfigurationError,
    InvalidRequest,
    MoothallError,
    NotFound,
    RepositoryError,
)
from moothall.ports import NOTHING
from moothall.repositories import sources
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.history import LineOrigin, find_line_origin, read_message
from moothall.repositories.profile import (
    CONFIG_FILE,
    Commands,
    commands_of,
    parse_config_file,
    to_toml,
    write_config_file,
)
from moothall.repositories.worktree import apply_to_files, changed_files
from moothall.sandbox.probe import check_layers
from moothall.workspace.layout import uses_environment
from moothall.workspace.toolchains import choose

if TYPE_CHECKING:
    from moothall.api.kernel_client import RemoteKernel


_MAX_SHOWN = 5
_MAX_SHOWN_FILES, _MAX_SHOWN_BYTES = 100, 1_000_000
_TRAILER = re.compile(r"(?m)^Deliberation: (\S{1,140})$")


async def find_repository(settings: Settings, named: NamedRepository) -> RepositoryRef | None:
    """Return the named repository, or the one around the current folder; None if that folder is in
    none.
    """
    named.check()
    if named.text:
        return None
    if named.repo:
        return await register(settings, named.repo, named.ref, named.profile)
    try:
        await sources.find_local(_git(settings), await asyncio.to_thread(Path.cwd))
    except RepositoryError:
        return None
    return await register(settings, ".", named.ref, named.profile)


async def describe_uncommitted(settings: Settings, repository: RepositoryRef) -> str:
    """Return a sentence about uncommitted changes in a repository, which councils do not see, or an
    empty string. An uncommitted `.moothall.toml` is used, so it is not among them.
    """
    top = files_of(settings, repository)
    if top is None:
        return ""
    git = _git(settings)
    local = await sources.find_local(git, top)
    if local.top == local.git_dir:
        return ""
    changed = [path for path in await changed_files(git, local) if path != CONFIG_FILE]
    if not changed:
        return ""
    sha = await sources.local_commit(git, local, repository.ref)
    excerpt = ", ".join(changed[:_MAX_SHOWN]) + (", …" if len(changed) > _MAX_SHOWN else "")
    notice = (
        f"uncommitted changes in {len(changed)} file{'s' if len(changed) > 1 else ''} are not "
        f"seen: {excerpt}"
    )
    return f"works on the commit {sha[:10]}; {notice}"


def files_of(settings: Settings, repository: RepositoryRef) -> Path | None:
    """Return the path of a repository's files on this machine; None if it was fetched from a
    URL.
    """
    entry = trusted_repositories(settings).registry.get(repository.id, LOCAL.tenant)
    return Path(entry.origin) if entry.local else None


async def files_here(settings: Settings, location: str) -> Path | None:
    """Return the top of the repository at a path or around the current folder, or None."""
    path = Path(location) if location else await asyncio.to_thread(Path.cwd)
    try:
        return (await sources.find_local(_git(settings), await asyncio.to_thread(path.resolve))).top
    except RepositoryError:
        return None


def names(reference: RepositoryRef, files: Path | None) -> RepositoryRef | None:
    """Return the reference by which a server knows a repository: as it was named, or by the path of
    the local files.
    """
    location = reference.url or (str(files) if files is not None else "")
    return RepositoryRef(url=location, ref=reference.ref) if location else None


@asynccontextmanager
async def kernel_of(
    settings: Settings, server: str, token_file: Path | None
) -> AsyncIterator[RemoteKernel]:
    """Connect to a server, with the token from a file, from the settings, or from this machine's
    first run. Raises `ConfigurationError`.
    """
    from moothall.api.kernel_client import remote_kernel

    async with remote_kernel(
        server, await asyncio.to_thread(_token, settings, token_file), settings.grpc.tls_cert
    ) as kernel:
        yield kernel


def _token(settings: Settings, token_file: Path | None) -> str:
    if token_file is None and settings.grpc.token is not None:
        return settings.grpc.token.get_secret_value()
    path = token_file or settings.data_dir / "token"
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"the token file {path} cannot be read; name one with --token-file"
        ) from error


@dataclass(frozen=True, slots=True)
class Diff:
    """A diff, and the commit that it is based on."""

    diff: str
    base: str = ""


async def apply_conversation(settings: Settings, top: Path, *changes: Diff) -> tuple[str, ...]:
    """Apply the last of a conversation's changes to the files at `top`, with as many earlier ones
    as it needs to apply. Return the paths. Raises `RepositoryError`; nothing is changed then.
    """
    git = _git(settings)
    local = await sources.find_local(git, top)
    failure: RepositoryError | None = None
    for first in reversed(range(len(changes))):
        try:
            return await apply_to_files(
                git, local, "".join(change.diff for change in changes[first:]), changes[first].base
            )
        except RepositoryError as error:
            failure = failure or error
    raise failure or RepositoryError("there is no diff to apply")


async def head_commit(settings: Settings, top: Path) -> str:
    """Return the commit that is checked out at `top`. Raises `RepositoryError`."""
    git = _git(settings)
    return await sources.local_commit(git, await sources.find_local(git, top), "")


@dataclass(frozen=True, slots=True)
class FileVersions:
    """A file before and after a change; None where it does not exist."""

    path: str
    old: str | None
    new: str | None


async def file_versions(
    settings: Settings, top: Path, base: str, commit: str
) -> Sequence[FileVersions]:
    """Return the text files that differ between two commits of the repository at `top`, except
    files that are not UTF-8 or too large to show. Raises `RepositoryError`.
    """
    git = _git(settings)
    local = await sources.find_local(git, top)
    git_dir = f"--git-dir={local.git_dir}"
    output = await git.run(
        git_dir,
        "diff-tree",
        "-r",
        "-z",
        "--name-only",
        "--no-renames",
        base,
        commit,
        cwd=local.git_dir,
    )
    versions = []
    for path in os.fsdecode(output).split("\0")[:-1][:_MAX_SHOWN_FILES]:
        results = [
            await git.call(git_dir, "cat-file", "blob", f"{sha}:{path}", cwd=local.git_dir)
            for sha in (base, commit)
        ]
        if sum(len(result.out) for result in results) > _MAX_SHOWN_BYTES:
            continue
        with suppress(UnicodeDecodeError):
            old, new = (None if result.status else result.out.decode() for result in results)
            versions.append(FileVersions(path, old, new))
    return versions


def _git(settings: Settings) -> GitRunner:
    return GitRunner(settings.data_dir / "repos")


async def line_provenance(
    settings: Settings,
    place: tuple[str, str, str, int],
    parameters: Mapping[str, str] = NOTHING,
    tenant: str = "",
) -> tuple[LineOrigin, Sequence[Mapping[str, Any]]]:
    """Return the commit that a line comes from, and what the graph knows about it.

    `place` is a repository, a ref, a path and a line; `parameters` are further parameters
    of the question. Without `tenant` it is taken from the branch, the registered repository, or the
    deliberation in the commit message. Raises what `line_origin` raises, and `GraphUnavailable`.
    """
    from moothall.app.graph import open_answers

    origin, owner = await line_origin(settings, *place, tenant=tenant)
    question = {
        "tenant": tenant or owner,
        "path": origin.path,
        **parameters,
        "commit_sha": origin.commit,
    }
    async with open_answers(settings) as answers:
        return origin, await answers.ask("provenance", **question)


async def line_origin(
    settings: Settings, location: str, ref: str, path: str, line: int, *, tenant: str = ""
) -> tuple[LineOrigin, str]:
    """Return the commit that a line comes from, and the tenant of its deliberation.

    Without `tenant`, registered repositories of all tenants are searched. Raises `NotFound`,
    `InvalidRequest`, `RepositoryError`.
    """
    _, prefix, branch = ref.rpartition("moothall/")
    branch_tenant = tenant_of(branch) if prefix else ""
    if not await asyncio.to_thread(os.path.exists, location):
        repositories = trusted_repositories(settings)
        owner = (
            tenant
            or branch_tenant
            or (await asyncio.to_thread(repositories.registry.find, location)).tenant
        )
        return await repositories.origin(location, ref, path, line, tenant=owner), owner
    git = _git(settings)
    local = await sources.find_local(git, Path(location))
    origin = await find_line_origin(
        git, local.git_dir, await sources.local_commit(git, local, ref), path, line
    )
    message = await read_message(git, local.git_dir, origin.commit)
    commit_tenant = next(
        filter(None, (tenant_of(trailer[1]) for trailer in _TRAILER.finditer(message))), ""
    )
    return origin, tenant or branch_tenant or commit_tenant or LOCAL.tenant


@dataclass(frozen=True, slots=True)
class RepositoryCheck:
    """The result of a check. `prepared` is None if `failure` is set. `files` is where a profile can
    be written.
    """

    base: Base
    prepared: Prepared | None
    failure: MoothallError | None
    seconds: float
    unseen: str = ""
    files: Path | None = None

    @property
    def interpreter(self) -> str:
        """The Python of the environment, or an empty string without an environment."""
        return (
            str(choose(self.base.profile.needs).python.program)
            if uses_environment(self.base)
            else ""
        )

    @property
    def own_file(self) -> str:
        """The text of a `.moothall.toml` with the same commands."""
        return to_toml(commands_of(self.base.profile))


async def check_repository(
    settings: Settings, named: NamedRepository, report_progress: Callable[[str], None]
) -> RepositoryCheck:
    """Resolve, set up and check the base. Raises what prevents that; a failed set-up is
    returned.
    """
    started = time.monotonic()
    ref = await find_repository(settings, named)
    if ref is None:
        raise InvalidRequest(
            "the current folder is not in a git repository; name one: moothall check PATH, URL "
            "or id"
        )
    notice = await describe_uncommitted(settings, ref)
    base = await trusted_repositories(settings).resolve(ref)
    prepared, failure = None, None
    try:
        prepared = await _prepare(settings, ref, report_progress)
    except* RepositoryError as group:
        failure = RepositoryError("\n".join(dict.fromkeys(map(str, leaves(group)))))
    return RepositoryCheck(
        base, prepared, failure, time.monotonic() - started, notice, files_of(settings, ref)
    )


async def _prepare(
    settings: Settings, ref: RepositoryRef, report_progress: Callable[[str], None]
) -> Prepared:
    from moothall.app.workspaces import open_workspace_services  # slow to import

    if settings.workspace.uses_local_sandbox:
        await check_layers(settings.sandbox)
    # Only one executor is needed, so none is started in advance.
    workspace = settings.workspace.model_copy(update={"warm": 0})
    async with open_workspace_services(
        settings.model_copy(update={"workspace": workspace})
    ) as services:
        base = await services.repositories.resolve(ref)
        return await services.repositories.prepare(base, report_progress)


async def write_profile(repository_check: RepositoryCheck, *, replace: bool) -> Path:
    """Write the detected profile as the work tree's `.moothall.toml`. Raises `InvalidRequest`,
    `AlreadyExists`, `RepositoryError`.
    """
    if repository_check.files is None or not (repository_check.files / ".git").exists():
        raise InvalidRequest(
            "its files are not on this machine: --write needs a work tree; --json shows what would "
            "be written"
        )
    return await asyncio.to_thread(
        write_config_file, repository_check.files, repository_check.own_file, replace=replace
    )


async def register(
    settings: Settings, location: str, ref: str, profile: Path | None = None
) -> RepositoryRef:
    """Register a repository that the user named on the command line (a path, a URL or an id) and
    check that it can be used.

    `profile`: a file like `.moothall.toml` whose entries take precedence over the repository's own.
    """
    repositories = trusted_repositories(settings)
    try:
        known_id = (
            ""
            if await asyncio.to_thread(Path(location).exists)
            else repositories.registry.get(location, LOCAL.tenant).id
        )
    except (NotFound, InvalidRequest):
        known_id = ""
    entry = (
        repositories.registry.find(known_id) if known_id else await repositories.register(location)
    )
    if profile is not None:
        entry = await repositories.with_profile(
            entry, (await asyncio.to_thread(read_file, profile)).over(entry.commands)
        )
    registered = RepositoryRef(id=entry.id, ref=ref)
    await repositories.resolve(registered)
    return registered


def read_file(path: Path) -> Commands:
    """Read a file like `.moothall.toml`. Raises `ConfigurationError`, `RepositoryError`."""
    try:
        return parse_config_file(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigurationError(f"the profile {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the profile {path} is not text") from error


def commands_from_options(
    setup: Sequence[str], checks: Sequence[str], profile: Path | None = None
) -> Commands | None:
    """Return the set-up and checks (NAME=COMMAND) from the command line, with precedence over those
    in the file `profile`; None without any.

    Raises `InvalidRequest`, `ConfigurationError`, `RepositoryError`.
    """
    if not (setup or checks or profile):
        return None
    pairs = [check.partition("=") for check in checks]
    if malformed := [
        check
        for check, (name, _, command) in zip(checks, pairs, strict=True)
        if not (name and command)
    ]:
        raise InvalidRequest(
            f"--check {malformed[0][:80]!r} names no command; write NAME=COMMAND, such as "
            "tests='pytest -q'"
        )
    document = {
        "setup": setup or None,
        "checks": {name: command for name, _, command in pairs} or None,
    }
    try:
        commands = Commands.model_validate(document)
    except ValidationError as error:
        raise InvalidRequest(codec.describe_errors(error)) from error
    return commands.over(read_file(profile)) if profile else commands
