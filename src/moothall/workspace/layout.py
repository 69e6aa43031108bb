"""Paths of prepared data in the data directory, and their locks."""

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
        """Folders of open workspaces, one for each process."""
        return self.data_dir / "run"

    def prepared_file(self, key: str) -> Path:
        """Return the path of the result of preparing a base, as JSON."""
        return self.data_dir / "prepared" / f"{key}.json"

    def tree(self, key: str) -> Path:
        """Return the path of the shared checkout."""
        return self.data_dir / "checkouts" / key

    def history(self, key: str) -> Path:
        """Return the folder with the git directory that the shell of workspaces reads."""
        return self.data_dir / "histories" / key

    def environment(self, key: str) -> Path:
        """Return the folder of an environment: `env` for /env, `layer` for the checkout."""
        return self.data_dir / "environments" / key

    def executor_setup(self, base: Base, key: str) -> ExecutorSetup:
        """Return the setup of a workspace's executor on `base`."""
        env_key, toolchains = environment_key(base), choose(base.profile.needs)
        history = self.history(key) if self.history(key).is_dir() else None
        setup = ExecutorSetup(
            key, (self.tree(key),), toolchains=toolchains.homes, image=base.image, history=history
        )
        if not env_key:
            return setup
        folder = self.environment(env_key)
        layer = (folder / "layer",) if (folder / "layer").is_dir() else ()
        return replace(
            setup,
            tree=(*layer, self.tree(key)),
            env=folder / "env",
            python=foreign_python(toolchains),
        )

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        """Hold a lock against all processes that share the data directory."""
        return file_locks.lock(self.data_dir / "locks" / name)


def uses_environment(base: Base) -> bool:
    """Return whether the profile needs a Python environment at /env: set-up installs into it, or
    checks run from it.
    """
    profile = base.profile
    steps = (*(step.argv for step in profile.steps), *(step.argv for step in profile.builds))
    commands = (*profile.setup, *steps, *profile.checks.values())
    programs = {argv[0] for argv in commands if argv}
    return any(
        program in _PYTHON or program.startswith(f"{ENVIRONMENT}/bin/") for program in programs
    )


def environment_key(base: Base) -> str:
    """Return the key of an environment, equal for all commits with the same lock files in the same
    image. Return '' if nothing is set up.
    """
    profile = base.profile
    if not profile.setup and not uses_environment(base):
        return ""
    toolchains = choose(profile.needs)
    python = (
        sys.version
        if foreign_python(toolchains) is None
        else f"{toolchains.python.version} {toolchains.python.program}"
    )
    other_parts = (*map(str, toolchains.homes), *map(repr, profile.steps), *_image(base))
    return digest(base.repository, profile.lock_digest, repr(profile.setup), python, *other_parts)[
        :_KEY_CHARS
    ]


def _image(base: Base) -> tuple[str, ...]:
    return (f"image {base.image}",) if base.image else ()


def foreign_python(toolchains: ChosenToolchain) -> Path | None:
    """Return the prefix of an environment's Python, None if it is our own."""
    return None if toolchains.python.program == interpreter() else toolchains.python.home


def prepared_key(base: Base) -> str:
    """Return the key of a prepared base, from its commit, profile and environment."""
    checks = repr(sorted(base.profile.checks.items())) + (
        repr(sorted(base.profile.folders.items())) if base.profile.folders else ""
    )
    checks += repr(base.profile.builds) if base.profile.builds else ""
    return digest(base.repository, base.sha, checks, environment_key(base), *_image(base))[
        :_KEY_CHARS
    ]
