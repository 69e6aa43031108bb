"""Where preparation leaves things in the data directory, and the locks that guard them."""

from __future__ import annotations

import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from moothall import file_locks
from moothall.domain.ids import digest
from moothall.domain.repository import Base
from moothall.sandbox.bubblewrap import ENVIRONMENT, interpreter
from moothall.workspace.executor_client import ExecutorSetup
from moothall.workspace.toolchains import ChosenToolchain, choose

_KEY_CHARS = 32
_PYTHON = frozenset({"python", "python3", "pip", "pip3"})


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths beneath one data directory."""

    data_dir: Path

    @property
    def run(self) -> Path:
        """Folders of open workspaces, one folder a process."""
        return self.data_dir / "run"

    def prepared_file(self, key: str) -> Path:
        """What is known of a prepared base, as JSON."""
        return self.data_dir / "prepared" / f"{key}.json"

    def tree(self, key: str) -> Path:
        """The shared checkout."""
        return self.data_dir / "checkouts" / key

    def history(self, key: str) -> Path:
        """A folder with the git directory that the shell of workspaces reads."""
        return self.data_dir / "histories" / key

    def environment(self, key: str) -> Path:
        """What set-up made: `env` for /env, `layer` for what it left in the checkout."""
        return self.data_dir / "environments" / key

    def place(self, base: Base, key: str) -> ExecutorSetup:
        """What a workspace on `base` shows."""
        environment, chosen = environment_key(base), choose(base.profile.needs)
        history = self.history(key) if self.history(key).is_dir() else None
        place = ExecutorSetup(
            key, (self.tree(key),), toolchains=chosen.homes, image=base.image, history=history
        )
        if not environment:
            return place
        folder = self.environment(environment)
        layer = (folder / "layer",) if (folder / "layer").is_dir() else ()
        return replace(
            place, tree=(*layer, self.tree(key)), env=folder / "env", python=foreign_python(chosen)
        )

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        """Hold a lock against all processes that share the data directory."""
        return file_locks.lock(self.data_dir / "locks" / name)


def uses_environment(base: Base) -> bool:
    """Whether the profile wants a Python environment at /env: set-up installs into it, or checks
    run from it.
    """
    profile = base.profile
    steps = (*(step.argv for step in profile.steps), *(step.argv for step in profile.builds))
    commands = (*profile.setup, *steps, *profile.checks.values())
    programs = {argv[0] for argv in commands if argv}
    return any(
        program in _PYTHON or program.startswith(f"{ENVIRONMENT}/bin/") for program in programs
    )


def environment_key(base: Base) -> str:
    """Name what set-up makes: the same for all commits with the same lock files, in the same image.
    '' where nothing is set up.
    """
    profile = base.profile
    if not profile.setup and not uses_environment(base):
        return ""
    chosen = choose(profile.needs)
    python = (
        sys.version
        if foreign_python(chosen) is None
        else f"{chosen.python.version} {chosen.python.program}"
    )
    more = (*map(str, chosen.homes), *map(repr, profile.steps), *_image(base))
    return digest(base.repository, profile.lock_digest, repr(profile.setup), python, *more)[
        :_KEY_CHARS
    ]


def _image(base: Base) -> tuple[str, ...]:
    return (f"image {base.image}",) if base.image else ()


def foreign_python(chosen: ChosenToolchain) -> Path | None:
    """Return the prefix of the Python of an environment, None where it is our own."""
    return None if chosen.python.program == interpreter() else chosen.python.home


def prepared_key(base: Base) -> str:
    """Name a prepared base: commit, profile and environment."""
    checks = repr(sorted(base.profile.checks.items())) + (
        repr(sorted(base.profile.folders.items())) if base.profile.folders else ""
    )
    checks += repr(base.profile.builds) if base.profile.builds else ""
    return digest(base.repository, base.sha, checks, environment_key(base), *_image(base))[
        :_KEY_CHARS
    ]
