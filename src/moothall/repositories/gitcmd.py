"""Running git on the trusted side, through GitPython's command layer, and the text of a git diff
between two commits.
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import IO, Any, NoReturn, ParamSpec, TypeVar, cast

from moothall.errors import RepositoryError, WorkspaceFailed
from moothall.processes import scratch
from moothall.telemetry import get_logger

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_STDERR_CHARS = 600
ATTEMPTS = 3
"""How often a command is tried if git is killed."""
_RETRY_PAUSE_SECONDS = 0.2
_NOT_RETRIED = {"push", "apply"}
"""Commands that their callers retry, since an interrupted one may have changed something."""
_KILL_SIGNALS = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""Signals from outside; a git process that fails by itself dies of others."""
_CHILD_KILLED = re.compile(r"\b(?:died of|killed by) signal (?:1|2|9|15)\b")
P = ParamSpec("P")
T = TypeVar("T")
log = get_logger(__name__)

# Variables that the environment of the parent process may contain, such as in a git hook.
_INHERITED = (
    "GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES "
    "GIT_COMMON_DIR GIT_PREFIX GIT_NAMESPACE GIT_CONFIG GIT_CONFIG_COUNT GIT_CONFIG_PARAMETERS "
    "GIT_EXTERNAL_DIFF GIT_DIFF_OPTS GIT_TEMPLATE_DIR GIT_SHALLOW_FILE GIT_REPLACE_REF_BASE "
    "GIT_IMPLICIT_WORK_TREE GIT_INTERNAL_SUPER_PREFIX GIT_CEILING_DIRECTORIES GIT_DEFAULT_HASH "
    "GIT_QUARANTINE_PATH GIT_GLOB_PATHSPECS GIT_NOGLOB_PATHSPECS GIT_ICASE_PATHSPECS SSH_ASKPASS "
    "GIT_TRACE GIT_TRACE2 GIT_TRACE2_EVENT GIT_TRACE_CURL GIT_TRACE_PACKET GIT_CURL_VERBOSE"
)

_ENVIRONMENT: Mapping[str, str] = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_ATTR_SOURCE": EMPTY_TREE,
    "GIT_GRAFT_FILE": "/dev/null",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",
    "SSH_ASKPASS_REQUIRE": "never",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "false",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_ALLOW_PROTOCOL": "none",
}

_CONFIG = (
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.fsmonitor=false",
    "core.filesRefLockTimeout=10000",
    "core.alternateRefsCommand=",
    "core.autocrlf=false",
    "core.safecrlf=false",
    "core.protectHFS=true",
    "core.protectNTFS=true",
    "core.packedGitWindowSize=64m",
    "core.packedGitLimit=512m",
    "credential.helper=",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "commit.gpgSign=false",
    "push.gpgSign=false",
    "diff.external=",
    "advice.graftFileDeprecated=false",
    "safe.directory=*",
)

# A git process that serves a local fetch reads these settings only from a file.
_CONFIG_FILE = (
    "[safe]\n\tdirectory = *\n[uploadpack]\n\tallowAnySHA1InWant = true\n[core]\n\thooksPath = "
    "/dev/null\n\tfsmonitor = false\n"
)


UNSET = "\0"
"""A value in a command's environment that leaves the variable unset."""


class FetchTooLarge(RepositoryError):
    """A fetch that exceeded the size limit of repositories."""


@dataclass(frozen=True, slots=True)
class GitResult:
    """The result of a git command."""

    status: int
    out: bytes
    err: str

    @property
    def killed(self) -> bool:
        """Whether git or a child process was killed from outside, such as by an operator or for
        lack of memory.
        """
        return -self.status in _KILL_SIGNALS or _CHILD_KILLED.search(self.err) is not None

    @property
    def reason(self) -> str:
        """The end of stderr, short enough for an error message."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        return "; ".join(lines)[-_STDERR_CHARS:] or f"git ended with status {self.status}"


@dataclass(frozen=True, slots=True)
class OutputCaps:
    """Kernel limits of one command in bytes; 0 means unlimited."""

    file_bytes: int = 0
    memory_bytes: int = 0


GIT_SECONDS = 120.0
"""The maximum duration of one git command; a fetch or checkout has workspace.check_seconds."""


class GitRunner:
    """A runner of git commands.

    home: the folder of its configuration file.
    seconds: the default time limit of a command.
    """

    def __init__(self, home: Path, seconds: float = GIT_SECONDS) -> None:
        self._config = home / "gitconfig"
        self._seconds = seconds

    async def call(
        self,
        *args: str,
        cwd: Path,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        seconds: float = 0,
        caps: OutputCaps = OutputCaps(),
        owner: tuple[int, int] | None = None,
    ) -> GitResult:
        """Run `git args` in `cwd`. `owner` is the (uid, gid) to run as.

        A killed command is retried, except for commands that may have changed something. Raises
        `RepositoryError` on a timeout, and `WorkspaceFailed` if git is killed and not retried, or
        killed too often.
        """
        command, env = _command(args, caps, env or {}), env or {}
        for _ in range(1 if _NOT_RETRIED.intersection(args) else ATTEMPTS):
            result = await asyncio.to_thread(
                self._call, command, cwd, stdin, env, seconds=seconds or self._seconds, owner=owner
            )
            if not result.killed:
                return result
            await self._remove_locks(args, cwd, env)
        raise WorkspaceFailed(
            f"git {_name(args)} was killed from outside; is there too little memory?"
        )

    async def _remove_locks(self, args: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        """Remove the locks that a killed git left. A lock that is still the same after a short
        pause has no owner.
        """
        log.warning("git was killed", command=_name(args), cwd=str(cwd))
        inodes = {path: _inode(path) for path in _locks(args, cwd, env)}
        await asyncio.sleep(_RETRY_PAUSE_SECONDS)
        for path, inode in inodes.items():
            if inode and _inode(path) == inode:
                path.unlink(missing_ok=True)

    async def run(
        self,
        *args: str,
        cwd: Path,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        seconds: float = 0,
    ) -> bytes:
        """Return the output of `git args`. Raises `RepositoryError` on any failure."""
        result = await self.call(*args, cwd=cwd, stdin=stdin, env=env, seconds=seconds)
        if result.status:
            raise RepositoryError(f"git {args[0]} failed: {result.reason}")
        return result.out

    def _call(
        self,
        command: list[str],
        cwd: Path,
        stdin: bytes,
        env: Mapping[str, str],
        *,
        seconds: float,
        owner: tuple[int, int] | None,
    ) -> GitResult:
        with tempfile.TemporaryFile() as stdin_file:
            stdin_file.write(stdin)
            stdin_file.seek(0)
            result = self._execute(
                cwd,
                command,
                istream=stdin_file,
                env=self._environment(env, owner),
                with_extended_output=True,
                with_exceptions=False,
                stdout_as_string=False,
                strip_newline_in_stdout=False,
                kill_after_timeout=seconds,
                **_process_options(owner),
            )
        status, out, err = cast("tuple[int, bytes, str]", result)
        if err.startswith("Timeout: the command"):
            raise RepositoryError(f"git took longer than {seconds:g} seconds and was stopped")
        return GitResult(status, out, err)

    @contextmanager
    def stream(
        self, *args: str, cwd: Path, stdin: bytes = b"", seconds: float = 0
    ) -> Iterator[IO[bytes]]:
        """Yield the standard output of a running git command. Use it in a thread.

        A command whose output is not read to its end is stopped. Raises `RepositoryError` if the
        command fails after its output was read, and `WorkspaceFailed` if git was killed, also in
        place of a `RepositoryError` of the caller.
        """
        with tempfile.TemporaryFile() as stdin_file:
            stdin_file.write(stdin)
            stdin_file.seek(0)
            running = self._execute(
                cwd,
                _command(args, OutputCaps(), {}),
                istream=stdin_file,
                env=self._environment({}, None),
                as_process=True,
                **_process_options(None),
            )
            process = cast("Any", running).proc
            timer = Timer(seconds or self._seconds, process.kill)
            timer.start()
            try:
                yield process.stdout
                if not process.stdout.read(1) and process.wait():
                    self._raise_failure(args, process, timer)
            except RepositoryError:
                if not process.stdout.read(1) and process.wait():
                    self._raise_failure(args, process, timer)
                raise
            finally:
                timer.cancel()
                process.kill()
                process.stdout.close()
                process.stderr.close()
                process.wait()

    def _raise_failure(self, args: Sequence[str], process: Any, timer: Timer) -> NoReturn:
        """Raise the error of a stream whose command failed."""
        result = GitResult(process.returncode, b"", process.stderr.read().decode(errors="replace"))
        if timer.finished.is_set():
            raise RepositoryError(f"git {args[0]} exceeded its time limit and was stopped")
        if result.killed:
            raise WorkspaceFailed(
                f"git {args[0]} was killed from outside; is there too little memory?"
            )
        raise RepositoryError(f"git {args[0]} failed: {result.reason}")

    def _execute(self, cwd: Path, command: list[str], **options: Any) -> object:
        # Imported here because the Kubernetes link of each pod imports this module, does not call
        # git, and must stay small.
        import git
        from git.exc import GitCommandNotFound

        try:
            return git.Git(str(cwd)).execute(command, **options)
        except GitCommandNotFound as error:
            raise RepositoryError("git cannot be run; install git 2.31 or newer") from error

    def _environment(
        self, variables: Mapping[str, str], owner: tuple[int, int] | None
    ) -> dict[str, str]:
        if owner:  # the owner may not read our folder, and trusts its own files anyway
            return {**_ENVIRONMENT, "GIT_CONFIG_GLOBAL": "/dev/null", **_set(variables)}
        if not self._config.exists():
            self._config.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._config.parent, delete=False) as file:
                file.write(_CONFIG_FILE)
            Path(file.name).chmod(0o644)
            Path(file.name).replace(self._config)
        return {**_ENVIRONMENT, "GIT_CONFIG_GLOBAL": str(self._config), **_set(variables)}


def _set(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if value != UNSET}


def retry_if_killed(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that reads streams: call it again if git was killed."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(ATTEMPTS - 1):
            try:
                return function(*args, **kwargs)
            except WorkspaceFailed as error:
                log.warning("git was killed", reason=error.message)
        return function(*args, **kwargs)

    return call


def exceeds_file_limit(stderr: str) -> bool:
    """Return whether git or a child process failed because of the file size limit."""
    return any(
        word in stderr for word in ("File too large", "signal 25", "SIGXFSZ", "index-pack died")
    )


def _name(args: Sequence[str]) -> str:
    return next((word for word in args if not word.startswith("-") and "=" not in word), "")


def _locks(args: Sequence[str], cwd: Path, env: Mapping[str, str]) -> Iterator[Path]:
    """Yield the lock files of a git command: those of its index and of the refs that it writes."""
    if index := env.get("GIT_INDEX_FILE"):
        yield Path(f"{index}.lock")
    folder = next(
        (Path(word.partition("=")[2]) for word in args if word.startswith("--git-dir=")), cwd
    )
    for word in args:
        ref = word.rpartition(":")[2]
        if ref.startswith("refs/") and ".." not in ref:
            yield folder / f"{ref}.lock"


def _inode(path: Path) -> int:
    try:
        return path.lstat().st_ino
    except OSError:
        return 0


def _command(args: tuple[str, ...], caps: OutputCaps, env: Mapping[str, str]) -> list[str]:
    names = [
        *(name for name in _INHERITED.split() if name not in env),
        *(name for name in env if env[name] == UNSET),
    ]
    unset_options = [word for name in names for word in ("-u", name)]
    config_options = [word for setting in _CONFIG for word in ("-c", setting)]
    command = ["env", *unset_options, "git", "--no-pager", *config_options, *args]
    limits = []
    if caps.file_bytes:
        limits.append(f"ulimit -f {caps.file_bytes // 512 + 1}")  # in blocks of 512 bytes
    if caps.memory_bytes:
        limits.append(f"ulimit -v {caps.memory_bytes // 1024 + 1}")
    if not limits:
        return command
    return ["sh", "-c", f'{" && ".join(limits)} && exec "$@"', "sh", *command]


def _process_options(owner: tuple[int, int] | None) -> dict[str, Any]:
    # In a session without a terminal no child can ask for a password, and Ctrl-C does not interrupt
    # a write.
    options: dict[str, Any] = {"start_new_session": True}
    if owner:
        options |= {"user": owner[0], "group": owner[1], "extra_groups": []}
    return options


# The text of a git diff between two commits, for files with any bytes.


RunGit = Callable[..., Awaitable[bytes]]
"""Runs git in the repository with these arguments and returns its output. Raises
`RepositoryError`.
"""
_DIFF_OPTIONS = (
    "--binary",
    "--full-index",
    "--no-color",
    "--no-renames",
    "--no-ext-diff",
    "--no-textconv",
)


async def diff_between(run: RunGit, old: str, new: str, diff_filter: str = "") -> str:
    """Return the git diff between two full commit ids. Files that are not UTF-8 are binary in it.

    `diff_filter` is an option that excludes some changes. Raises `RepositoryError`.
    """
    options = (diff_filter,) if diff_filter else ()
    try:
        return (await _diff_with_options(run, old, new, *options)).decode()
    except UnicodeDecodeError:
        output = await run("diff-tree", "-r", "-z", "--name-only", "--no-renames", old, new)
    parts = []
    with scratch() as folder:
        attributes_file = folder / "attributes"
        attributes_file.write_text("* -diff\n", encoding="ascii")
        for path in os.fsdecode(output).split("\0")[:-1]:
            try:
                part = (await _diff_with_options(run, old, new, *options, path=path)).decode()
            except UnicodeDecodeError:
                part = (
                    await _diff_with_options(
                        run, old, new, *options, path=path, attributes=str(attributes_file)
                    )
                ).decode()
            parts.append(part)
    return "".join(parts)


async def _diff_with_options(
    run: RunGit, old: str, new: str, *options: str, path: str = "", attributes: str = "/dev/null"
) -> bytes:
    # Names stay as they are, except where the text must be UTF-8 whatever the name is.
    quotes_names = attributes != "/dev/null"
    return await run(
        "-c",
        f"core.attributesFile={attributes}",
        "-c",
        f"core.quotePath={str(quotes_names).lower()}",
        "diff",
        *_DIFF_OPTIONS,
        *options,
        old,
        new,
        "--",
        *((path,) if path else ()),
    )
