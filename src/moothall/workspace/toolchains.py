"""The interpreters and toolchains of this machine, and the choice of those for a project.

Shims of pyenv and rustup are skipped: inside a sandbox they find neither their versions nor a
network.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from moothall.sandbox.bubblewrap import interpreter

_RANGE_TERM = re.compile(
    r"(>=|<=|>|<|=|\^|~)?\s*v?(\d+|[xX*])(?:\.(\d+|[xX*]))?(?:\.(\d+|[xX*]))?[-+\w.]*"
)
_Version = tuple[int, ...]


def satisfies(version: _Version, text: str) -> bool:
    """Return whether a version of three numbers is in a range. An unreadable range contains all
    versions.
    """
    three_numbers = (*version, 0, 0, 0)[:3]
    return not text.strip() or any(
        _satisfies_term(three_numbers, part) for part in text.split("||")
    )


def _satisfies_term(version: _Version, text: str) -> bool:
    hyphen_range = re.fullmatch(r"\s*(\S+)\s+-\s+(\S+)\s*", text)
    terms = _RANGE_TERM.findall(
        f">={hyphen_range[1]} <={hyphen_range[2]}" if hyphen_range else text
    )
    return all(low <= version < high for low, high in (_bounds(*term) for term in terms))


def _bounds(operator: str, *parts: str) -> tuple[_Version, _Version]:
    numbers = []
    for part in parts:
        if not part.isdigit():
            break
        numbers.append(int(part))
    low, unbounded = (*numbers, 0, 0, 0)[:3], (10**9, 0, 0)
    # The first version that no longer has this prefix.
    next_version = (*numbers[:-1], numbers[-1] + 1, 0, 0, 0)[:3] if numbers else unbounded
    if operator == "^" and numbers:
        index = next((index for index, number in enumerate(numbers) if number), len(numbers) - 1)
        return low, (*numbers[:index], numbers[index] + 1, 0, 0)[:3]
    if operator == "~" and len(numbers) > 1:
        return low, (numbers[0], numbers[1] + 1, 0)
    bounds = {
        ">=": (low, unbounded),
        ">": (next_version, unbounded),
        "<": ((0, 0, 0), low),
        "<=": ((0, 0, 0), next_version),
    }
    return bounds.get(operator, (low, next_version))


_PROBE = "import sys, venv, ensurepip; print('%d.%d.%d' % sys.version_info[:3], sys.base_prefix)"
_PROBE_SECONDS = 10.0
_OLDEST_PYTHON = (3, 6)
"""The first version whose venv and pip still work with today's index."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A version of a language. `home` is its folder, `program` its executable."""

    version: str
    program: Path
    home: Path

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version as numbers, for comparisons."""
        return tuple(int(number) for number in re.findall(r"\d+", self.version)[:3])


@dataclass(frozen=True, slots=True)
class ChosenToolchain:
    """The toolchains of a project: the Python of its environment, and more folders to show, whose
    bin is added to PATH.

    notes: for each language for which the project gets another version than it needs.
    missing: why the project cannot be set up here, or ''.
    """

    python: Toolchain
    folders: tuple[Path, ...]
    notes: tuple[str, ...]
    missing: str


def current_python() -> Toolchain:
    """Return the Python that runs this process."""
    return Toolchain(platform.python_version(), interpreter(), Path(sys.base_prefix).resolve())


def choose(needs: Mapping[str, str]) -> ChosenToolchain:
    """Return the toolchains for the `needs` of a profile. The result is cached for the lifetime of
    the process.
    """
    return _choose(tuple(sorted(needs.items())))


@lru_cache(maxsize=256)
def _choose(items: tuple[tuple[str, str], ...]) -> ChosenToolchain:
    needs = dict(items)
    python, missing = _find_python(needs.get("python", ""), needs.get("python-pin", ""))
    folders, notes = [], []
    for language, find in (("node", _find_node), ("go", _find_go), ("rust", _find_rust)):
        if language in needs:
            toolchain, note, problem = find(needs[language])
            folders += (
                [toolchain.home] if toolchain and not toolchain.home.is_relative_to("/usr") else []
            )
            notes += [note] if note else []
            missing = missing or problem
    return ChosenToolchain(python, tuple(folders), tuple(notes), missing)


def _find_python(spec: str, pin: str) -> tuple[Toolchain, str]:
    """Return the pinned Python if there is one, else our own if it matches, else the newest that
    matches. The second value describes a problem.
    """
    current = current_python()
    try:
        specifiers = (
            SpecifierSet(spec.replace(" ", ","), prereleases=True)
            if spec.strip()
            else SpecifierSet()
        )
    except InvalidSpecifier:
        try:
            specifiers = SpecifierSet(re.sub(r"\s+", "", spec), prereleases=True)
        except InvalidSpecifier:
            return current, ""  # pip reports the invalid specifier
    if pin and not _matches_pin(current, pin):
        pinned = next(
            (
                candidate
                for candidate in pythons()
                if _matches_pin(candidate, pin) and candidate.version in specifiers
            ),
            None,
        )
        if pinned:
            return pinned, ""
    if current.version in specifiers:
        return current, ""
    fitting = next((candidate for candidate in pythons() if candidate.version in specifiers), None)
    if fitting:
        return fitting, ""
    available = ", ".join(
        dict.fromkeys((current.version, *(candidate.version for candidate in pythons())))
    )
    return current, (
        f"the repository needs Python {spec}, and this machine has {available}; install a matching "
        "one (pyenv install, uv python install, or the system's packages) and start again"
    )


def _matches_pin(toolchain: Toolchain, pin: str) -> bool:
    return f"{toolchain.version}.".startswith(f"{pin}.")


@lru_cache(maxsize=1)
def pythons() -> tuple[Toolchain, ...]:
    """Return the other Pythons of this machine that can create an environment, the newest first."""
    toolchains = {
        toolchain.program: toolchain
        for program in _python_programs()
        if (toolchain := _probe(program))
    }
    return tuple(sorted(toolchains.values(), key=lambda toolchain: toolchain.numbers, reverse=True))


def _python_programs() -> Iterator[Path]:
    current = interpreter()
    seen_paths = {current}
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or Path.home() / ".local/share/uv/python")
    folders = [
        *(Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep) if entry),
        *_glob(pyenv, "*/bin"),
        *_glob(uv, "*/bin"),
    ]
    for folder in folders:
        for path in () if folder.name == "shims" else _glob(folder, "python3.*"):
            numbers = re.fullmatch(r"python3\.(\d+)", path.name)
            resolved = (
                path.resolve() if numbers and (3, int(numbers[1])) >= _OLDEST_PYTHON else current
            )
            if resolved not in seen_paths and os.access(resolved, os.X_OK):
                seen_paths.add(resolved)
                yield resolved


def _glob(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _probe(program: Path) -> Toolchain | None:
    try:
        result = subprocess.run(  # noqa: S603 - a program of this machine, our own words
            [str(program), "-I", "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version, _, home = result.stdout.strip().partition(" ")
    return Toolchain(version, program, Path(home).resolve()) if home else None


def _read_version(program: Path, *arguments: str) -> str:
    try:
        result = subprocess.run(  # noqa: S603 - as above
            [str(program), *arguments],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=True,
            cwd="/",
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    match = re.search(r"\d+\.\d+(?:\.\d+)?", result.stdout)
    return match[0] if match else ""


def _find_program(name: str, *extra_folders: str) -> Path | None:
    folders = [*os.environ.get("PATH", "").split(os.pathsep), *extra_folders]
    candidates = (
        Path(folder, name) for folder in folders if folder and Path(folder).name != "shims"
    )
    return next((path.resolve() for path in candidates if os.access(path, os.X_OK)), None)


SearchResult = tuple[Toolchain | None, str, str]
"""A toolchain, a note about its version, and a problem."""


def _find_node(version_range: str) -> SearchResult:
    default = _tool(_find_program("node", "/usr/local/bin", "/usr/bin"), "--version")
    nvm = Path(os.environ.get("NVM_DIR") or Path.home() / ".nvm") / "versions/node"
    alternatives = [
        Toolchain(home.name.lstrip("v"), home / "bin/node", home)
        for home in _glob(nvm, "v*")
        if (home / "bin/node").exists()
    ]
    alternatives.sort(key=lambda toolchain: toolchain.numbers, reverse=True)
    fitting = [
        toolchain
        for toolchain in (default, *alternatives)
        if toolchain and satisfies(toolchain.numbers, version_range)
    ]
    if fitting:
        return fitting[0], "", ""
    available = default or next(iter(alternatives), None)
    if available is None:
        return (
            None,
            "",
            (
                "the repository needs Node, and this machine has none; install it (apt-get install "
                "nodejs npm) and start again"
            ),
        )
    note = f"the repository asks for Node {version_range}; going on with {available.version}"
    return available, f"{note}, which is here", ""


def _find_go(version: str) -> SearchResult:
    default = _tool(_find_program("go", "/usr/local/go/bin", "/usr/bin"), "env", "GOVERSION")
    places = (
        Path.home() / "sdk",
        Path("/usr/local"),
        Path("/usr/lib"),
        Path.home() / "go/pkg/mod/golang.org",
    )
    folders = [
        home
        for place in places
        for home in (*_glob(place, "go[-0-9]*"), *_glob(place, "toolchain@*"))
        if (home / "bin/go").exists()
    ]
    alternatives = [
        Toolchain(match[1], home / "bin/go", home)
        for home in folders
        if (match := re.search(r"(\d+\.\d+(?:\.\d+)?)", home.name))
    ]
    minimum = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    fitting = [
        toolchain
        for toolchain in (
            default,
            *sorted(alternatives, key=lambda toolchain: toolchain.numbers, reverse=True),
        )
        if toolchain and toolchain.numbers >= minimum
    ]
    if fitting:
        return fitting[0], "", ""
    available = (
        ", ".join(toolchain.version for toolchain in (default, *alternatives) if toolchain)
        or "none"
    )
    return (
        default,
        "",
        (
            f"the repository needs Go {version or ''}".rstrip()
            + f", and this machine has {available}; install it (golang's own archive below "
            "/usr/local/go, or `go install golang.org/dl/goVERSION@latest` and its download) and "
            "start again"
        ),
    )


def _find_rust(channel: str) -> SearchResult:
    rustup = Path(os.environ.get("RUSTUP_HOME") or Path.home() / ".rustup")
    folders = {
        home.name: home
        for home in _glob(rustup / "toolchains", "*")
        if (home / "bin/cargo").exists()
    }
    try:
        default = str(
            tomllib.loads((rustup / "settings.toml").read_text(encoding="utf-8")).get(
                "default_toolchain", ""
            )
        )
    except (OSError, tomllib.TOMLDecodeError):
        default = ""
    name = next(
        (
            name
            for name in folders
            if channel and (name == channel or name.startswith(f"{channel}-"))
        ),
        "",
    )
    note = f"the repository asks for Rust {channel}; going on with " if channel and not name else ""
    name = name or (
        default
        if default in folders
        else next(iter(sorted(folders, key=lambda name: ("stable" not in name, name))), "")
    )
    if name:
        return (
            Toolchain(name, folders[name] / "bin/cargo", folders[name]),
            note and f"{note}{name}, which is here",
            "",
        )
    system = _find_program("cargo", "/usr/bin") if not folders else None
    if system and system.is_relative_to("/usr"):
        return Toolchain("", system, Path("/usr")), note and f"{note}the system's own", ""
    return (
        None,
        "",
        (
            "the repository needs Rust, and this machine has none; install it (apt-get install "
            "cargo, or rustup) and start again"
        ),
    )


def _tool(program: Path | None, *arguments: str) -> Toolchain | None:
    if program is None:
        return None
    return Toolchain(_read_version(program, *arguments), program, program.parent.parent)
