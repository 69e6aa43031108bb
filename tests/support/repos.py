"""Small real git repositories for tests."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

SAMPLE: Mapping[str, str] = {
    "README.md": "# Sample\n\nA small library with a missing function.\n",
    "src/utils.py": (
        '"""Small helpers."""\n\n\ndef greet(name: str) -> str:\n    """Return a greeting."""\n   '
        ' return f"Hello, {name}!"\n'
    ),
    "tests/test_utils.py": (
        "from utils import greet\n\n\n"
        'def test_greet():\n    assert greet("Ada") == "Hello, Ada!"\n\n\n'
        "def test_hello_world():\n    from utils import hello_world\n\n"
        '    assert hello_world() == "Hello, World!"\n'
    ),
    "pyproject.toml": (
        '[project]\nname = "sample"\nversion = "0.1.0"\n\n[tool.pytest.ini_options]\npythonpath = '
        '["src"]\n'
    ),
    ".gitignore": "*.log\n/build/\n",
}
SOLUTION = (
    '\n\ndef hello_world() -> str:\n    """Return the classic greeting."""\n    return "Hello, '
    'World!"\n'
)
_DATE = "2024-05-06T07:08:09+00:00"


@dataclass(frozen=True, slots=True)
class Repo:
    """A repository with a work tree at `path`."""

    path: Path

    def git(self, *args: str, stdin: bytes = b"") -> str:
        """Run git here as its owner would and return its output, stripped."""
        env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.path),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_DATE": _DATE,
            "GIT_COMMITTER_DATE": _DATE,
        }
        identity = (
            "-c",
            "user.name=Ada",
            "-c",
            "user.email=ada@localhost",
            "-c",
            "init.defaultBranch=main",
        )
        command = ["git", *identity, "-c", "protocol.file.allow=always", *args]
        completed = subprocess.run(
            command, cwd=self.path, env=env, input=stdin, capture_output=True, check=False
        )
        if completed.returncode:
            raise AssertionError(
                f"git {' '.join(args)}: {completed.stderr.decode(errors='replace')}"
            )
        return completed.stdout.decode().strip()

    def write(self, files: Mapping[str, str | bytes]) -> None:
        """Write files below the work tree."""
        for name, content in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    def commit(
        self, files: Mapping[str, str | bytes] | None = None, message: str = "change"
    ) -> str:
        """Write files, commit all changes and return the sha."""
        self.write(files or {})
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.head

    def commit_tree(self, *lines: str) -> str:
        """Commit a crafted tree of `mode type sha<TAB>name` lines, unchecked, and return the
        commit's sha.
        """
        tree = self.git(
            "mktree", "--missing", "-z", stdin="".join(f"{line}\0" for line in lines).encode()
        )
        commit = self.git("commit-tree", tree, "-m", "crafted")
        self.git("update-ref", "refs/heads/crafted", commit)
        return commit

    def blob(self, content: str | bytes) -> str:
        """Store a blob and return its sha."""
        return self.git(
            "hash-object",
            "-w",
            "--stdin",
            stdin=content.encode() if isinstance(content, str) else content,
        )

    @property
    def head(self) -> str:
        """The sha of the checked-out commit."""
        return self.git("rev-parse", "HEAD")


def make_repo(path: Path, files: Mapping[str, str | bytes] | None = None) -> Repo:
    """Create a repository; without `files` it has no commit."""
    path.mkdir(parents=True)
    repo = Repo(path)
    if files is None:
        repo.git("init", "--quiet")
        return repo
    for name, (content, mode) in _committed_files(tuple(files.items())).items():
        repo.write({name: content})
        (path / name).chmod(mode)
    repo.git("update-index", "-q", "--refresh")  # the index identifies files by their inodes
    return repo


@cache
def _committed_files(files: tuple[tuple[str, str | bytes], ...]) -> Mapping[str, tuple[bytes, int]]:
    """Return every file, with its mode, of a repository with one commit, which git creates once."""
    with TemporaryDirectory() as folder:
        repo = Repo(Path(folder))
        repo.git("init", "--quiet")
        repo.commit(dict(files), "first")
        paths = sorted(path for path in repo.path.rglob("*") if path.is_file())
        return {
            str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode)
            for path in paths
        }


def make_sample(path: Path) -> Repo:
    """Create the sample: src/utils.py, and a test that fails until it has hello_world()."""
    return make_repo(path, SAMPLE)
