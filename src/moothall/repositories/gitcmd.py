"""Running git on the trusted side: GitPython's command layer with everything that could run
something else switched off.

No hook, filter, system or user configuration, prompt, replacement object, lazy fetch, external
diff, file system
monitor or submodule recursion takes part. Git commands run in threads, each with a time limit.
"""

from __future__ import annotations

import asyncio
import functools
import re
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import IO, Any, ParamSpec, TypeVar, cast

from moothall.errors import RepositoryError, WorkspaceFailed
from moothall.telemetry import get_logger

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_STDERR_CHARS = 600
TRIES = 3  # of a git that is killed
_PAUSE = 0.2
_ONCE = {"push", "apply"}  # whoever calls these begins before them
_KILLS = {
    signal.SIGKILL,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
}  # a git of ours that fails by itself dies of others
_KILLED_BELOW = re.compile(r"\b(?:died of|killed by) signal (?:1|2|9|15)\b")
P = ParamSpec("P")
T = TypeVar("T")
log = get_logger(__name__)

# What the process that started us may have left in its environment (for example as a git hook).
_UNSET = (
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

# A git that serves a local fetch takes settings from a file only, so these stand in one.
_FILE = (
    "[safe]\n\tdirectory = *\n[uploadpack]\n\tallowAnySHA1InWant = true\n[core]\n\thooksPath = "
    "/dev/null\n\tfsmonitor = false\n"
)


UNSET = "\0"
"""A value in a command's environment that leaves the variable unset."""


class FetchTooLarge(RepositoryError):
    """A fetch hit its limit."""


@dataclass(frozen=True, slots=True)
class GitAnswer:
    """What a git command came to."""

    status: int
    out: bytes
    err: str

    @property
    def killed(self) -> bool:
        """Whether it, or a git below it, was ended by a signal that was not ours: by an operator,
        or for want of memory.
        """
        return -self.status in _KILLS or _KILLED_BELOW.search(self.err) is not None

    @property
    def reason(self) -> str:
        """The last words of stderr, short enough for an error message."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        return "; ".join(lines)[-_STDERR_CHARS:] or f"git ended with status {self.status}"


@dataclass(frozen=True, slots=True)
class OutputCaps:
    """Kernel limits of one command in bytes; 0 is none."""

    file_bytes: int = 0
    memory_bytes: int = 0


class GitRunner:
    """Runs git. `home` is a folder for its one configuration file; `seconds` the limit of a
    command.
    """

    def __init__(self, home: Path, seconds: float = 120.0) -> None:
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
    ) -> GitAnswer:
        """Run `git args` in `cwd`. `owner` is the (uid, gid) to run as. A time-out is a
        `RepositoryError`.

        One that is killed is run again, unless nobody knows how far it came and that matters.
        Raises `WorkspaceFailed`
        for those, and where it happens too often.
        """
        command, env = _command(args, caps, env or {}), env or {}
        for _ in range(1 if _ONCE.intersection(args) else TRIES):
            answer = await asyncio.to_thread(
                self._call, command, cwd, stdin, env, seconds=seconds or self._seconds, owner=owner
            )
            if not answer.killed:
                return answer
            await self._after_a_kill(args, cwd, env)
        raise WorkspaceFailed(
            f"git {_name(args)} was killed by a signal that was not ours; is there too little "
            "memory?"
        )

    async def _after_a_kill(self, args: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        """Wait a little, and remove the locks that the killed git left: nobody holds one for so
        long.
        """
        log.warning("git was killed", command=_name(args), cwd=str(cwd))
        before = {path: _inode(path) for path in _locks(args, cwd, env)}
        await asyncio.sleep(_PAUSE)
        for path, inode in before.items():
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
        """Return what `git args` prints; any failure is a `RepositoryError`."""
        answer = await self.call(*args, cwd=cwd, stdin=stdin, env=env, seconds=seconds)
        if answer.status:
            raise RepositoryError(f"git {args[0]} failed: {answer.reason}")
        return answer.out

    def _call(
        self,
        command: list[str],
        cwd: Path,
        stdin: bytes,
        env: Mapping[str, str],
        *,
        seconds: float,
        owner: tuple[int, int] | None,
    ) -> GitAnswer:
        with tempfile.TemporaryFile() as source:
            source.write(stdin)
            source.seek(0)
            answer = self._execute(
                cwd,
                command,
                istream=source,
                env=self._environment(env, owner),
                with_extended_output=True,
                with_exceptions=False,
                stdout_as_string=False,
                strip_newline_in_stdout=False,
                kill_after_timeout=seconds,
                **_process_options(owner),
            )
        status, out, err = cast("tuple[int, bytes, str]", answer)
        if err.startswith("Timeout: the command"):
            raise RepositoryError(f"git took longer than {seconds:g} seconds and was stopped")
        return GitAnswer(status, out, err)

    @contextmanager
    def stream(
        self, *args: str, cwd: Path, stdin: bytes = b"", seconds: float = 0
    ) -> Iterator[IO[bytes]]:
        """Yield the standard output of a running git command (to be used in a thread). One that was
        read to
        its end and failed is a `RepositoryError`; one that was not is stopped. One that was killed
        is `WorkspaceFailed`, whatever was made of what it said.
        """
        with tempfile.TemporaryFile() as source:
            source.write(stdin)
            source.seek(0)
            running = self._execute(
                cwd,
                _command(args, OutputCaps(), {}),
                istream=source,
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
                    self._check_end(args, process, timer)
            except RepositoryError:
                if not process.stdout.read(1) and process.wait():
                    self._check_end(args, process, timer)
                raise
            finally:
                timer.cancel()
                process.kill()
                process.stdout.close()
                process.stderr.close()
                process.wait()

    def _check_end(self, args: Sequence[str], process: Any, timer: Timer) -> None:
        """Raise what the end of a stream means that did not end well."""
        answer = GitAnswer(process.returncode, b"", process.stderr.read().decode(errors="replace"))
        if timer.finished.is_set():
            raise RepositoryError(f"git {args[0]} took too long and was stopped")
        if answer.killed:
            raise WorkspaceFailed(
                f"git {args[0]} was killed by a signal that was not ours; is there too little "
                "memory?"
            )
        raise RepositoryError(f"git {args[0]} failed: {answer.reason}")

    def _execute(self, cwd: Path, command: list[str], **options: Any) -> object:
        # Here, since a link of a pod, which calls no git, comes by this module, and each pod pays
        # for what it imports.
        import git
        from git.exc import GitCommandNotFound

        try:
            return git.Git(str(cwd)).execute(command, **options)
        except GitCommandNotFound as error:
            raise RepositoryError("git cannot be run; install git 2.31 or newer") from error

    def _environment(
        self, more: Mapping[str, str], owner: tuple[int, int] | None
    ) -> dict[str, str]:
        if owner:  # who may not read our folder, and needs no exception for what is their own
            return {**_ENVIRONMENT, "GIT_CONFIG_GLOBAL": "/dev/null", **_set(more)}
        if not self._config.exists():
            self._config.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._config.parent, delete=False) as file:
                file.write(_FILE)
            Path(file.name).chmod(0o644)
            Path(file.name).replace(self._config)
        return {**_ENVIRONMENT, "GIT_CONFIG_GLOBAL": str(self._config), **_set(more)}


def _set(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if value != UNSET}


def again(work: Callable[P, T]) -> Callable[P, T]:
    """Do `work`, which reads streams, again where a git in it was killed."""

    @functools.wraps(work)
    def call(*args: P.args, **named: P.kwargs) -> T:
        for _ in range(TRIES - 1):
            try:
                return work(*args, **named)
            except WorkspaceFailed as error:
                log.warning("git was killed", reason=error.message)
        return work(*args, **named)

    return call


def over_limit(stderr: str) -> bool:
    """Whether a git says that it, or one below it, hit the limit of what it may write."""
    return any(
        word in stderr for word in ("File too large", "signal 25", "SIGXFSZ", "index-pack died")
    )


def _name(args: Sequence[str]) -> str:
    return next((word for word in args if not word.startswith("-") and "=" not in word), "")


def _locks(args: Sequence[str], cwd: Path, env: Mapping[str, str]) -> Iterator[Path]:
    """Yield the lock files that a git with these arguments takes: of its index and of the refs that
    it writes.
    """
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
        *(name for name in _UNSET.split() if name not in env),
        *(name for name in env if env[name] == UNSET),
    ]
    unset = [word for name in names for word in ("-u", name)]
    settings = [word for setting in _CONFIG for word in ("-c", setting)]
    command = ["env", *unset, "git", "--no-pager", *settings, *args]
    limits = (
        [f"ulimit -f {caps.file_bytes // 512 + 1}"] if caps.file_bytes else []
    )  # POSIX sh counts blocks of 512
    limits += [f"ulimit -v {caps.memory_bytes // 1024 + 1}"] if caps.memory_bytes else []
    if not limits:
        return command
    return ["sh", "-c", f'{" && ".join(limits)} && exec "$@"', "sh", *command]


def _process_options(owner: tuple[int, int] | None) -> dict[str, Any]:
    # Without a terminal of its own nothing below can ask for a password, and Ctrl-C does not tear a
    # write apart.
    options: dict[str, Any] = {"start_new_session": True}
    if owner:
        options |= {"user": owner[0], "group": owner[1], "extra_groups": []}
    return options
