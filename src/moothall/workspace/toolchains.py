"""The interpreters and toolchains of this machine, and which of them a project gets.

Shims (pyenv's, rustup's) are passed over: inside a sandbox they find neither their versions nor a
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

_TERM = re.compile(
    r"(>=|<=|>|<|=|\^|~)?\s*v?(\d+|[xX*])(?:\.(\d+|[xX*]))?(?:\.(\d+|[xX*]))?[-+\w.]*"
)
_Version = tuple[int, ...]


def satisfies(version: _Version, text: str) -> bool:
    """Whether a version of three numbers lies in a range; one that cannot be read holds every
    version.
    """
    whole = (*version, 0, 0, 0)[:3]
    return not text.strip() or any(_holds(whole, part) for part in text.split("||"))


def _holds(version: _Version, text: str) -> bool:
    between = re.fullmatch(r"\s*(\S+)\s+-\s+(\S+)\s*", text)
    terms = _TERM.findall(f">={between[1]} <={between[2]}" if between else text)
    return all(low <= version < high for low, high in (_bounds(*term) for term in terms))


def _bounds(operator: str, *words: str) -> tuple[_Version, _Version]:
    numbers = []
    for word in words:
        if not word.isdigit():
            break
        numbers.append(int(word))
    low, top = (*numbers, 0, 0, 0)[:3], (10**9, 0, 0)
    after = (
        (*numbers[:-1], numbers[-1] + 1, 0, 0, 0)[:3] if numbers else top
    )  # the first that no longer begins so
    if operator == "^" and numbers:
        at = next((at for at, number in enumerate(numbers) if number), len(numbers) - 1)
        return low, (*numbers[:at], numbers[at] + 1, 0, 0)[:3]
    if operator == "~" and len(numbers) > 1:
        return low, (numbers[0], numbers[1] + 1, 0)
    bounds = {">=": (low, top), ">": (after, top), "<": ((0, 0, 0), low), "<=": ((0, 0, 0), after)}
    return bounds.get(operator, (low, after))


_PROBE = "import sys, venv, ensurepip; print('%d.%d.%d' % sys.version_info[:3], sys.base_prefix)"
_PROBE_SECONDS = 10.0
_OLDEST = (3, 6)  # the first whose venv and pip still work with today's index


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A version of a language; `home` holds all of it, `program` is what one runs."""

    version: str
    program: Path
    home: Path

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version to be compared."""
        return tuple(int(number) for number in re.findall(r"\d+", self.version)[:3])


@dataclass(frozen=True, slots=True)
class ChosenToolchain:
    """What a project gets: the Python of its environment, more folders to show (whose bin goes on
    PATH).

    `notes` say where it got other than it asked for, `missing` why it cannot be set up here.
    """

    python: Toolchain
    homes: tuple[Path, ...]
    notes: tuple[str, ...]
    missing: str


def own_python() -> Toolchain:
    """Return the Python that we run on ourselves."""
    return Toolchain(platform.python_version(), interpreter(), Path(sys.base_prefix).resolve())


def choose(needs: Mapping[str, str]) -> ChosenToolchain:
    """Return what a profile's `needs` come to on this machine. The same for the same needs, while
    the process lives.
    """
    return _choose(tuple(sorted(needs.items())))


@lru_cache(maxsize=256)
def _choose(items: tuple[tuple[str, str], ...]) -> ChosenToolchain:
    needs = dict(items)
    python, missing = _python(needs.get("python", ""), needs.get("python-pin", ""))
    homes, notes = [], []
    for language, find in (("node", _node), ("go", _go), ("rust", _rust)):
        if language in needs:
            found, note, lacking = find(needs[language])
            homes += [found.home] if found and not found.home.is_relative_to("/usr") else []
            notes += [note] if note else []
            missing = missing or lacking
    return ChosenToolchain(python, tuple(homes), tuple(notes), missing)


def _python(spec: str, pin: str) -> tuple[Toolchain, str]:
    """Return the pinned one where it is there, else our own where it fits, else the newest that
    fits.
    """
    own = own_python()
    try:
        asked = (
            SpecifierSet(spec.replace(" ", ","), prereleases=True)
            if spec.strip()
            else SpecifierSet()
        )
    except InvalidSpecifier:
        try:
            asked = SpecifierSet(re.sub(r"\s+", "", spec), prereleases=True)
        except InvalidSpecifier:
            return own, ""  # for pip to say
    if pin and not _is(own, pin):
        pinned = next(
            (found for found in pythons() if _is(found, pin) and found.version in asked), None
        )
        if pinned:
            return pinned, ""
    if own.version in asked:
        return own, ""
    fitting = next((found for found in pythons() if found.version in asked), None)
    if fitting:
        return fitting, ""
    there = ", ".join(dict.fromkeys((own.version, *(found.version for found in pythons()))))
    return own, (
        f"the repository needs Python {spec}, and this machine has {there}; install one that fits "
        "(pyenv install, uv python install, or the system's packages) and start again"
    )


def _is(found: Toolchain, pin: str) -> bool:
    return f"{found.version}.".startswith(f"{pin}.")


@lru_cache(maxsize=1)
def pythons() -> tuple[Toolchain, ...]:
    """Return the other Pythons of this machine that can make an environment, the newest first."""
    found = {one.program: one for program in _python_programs() if (one := _probe(program))}
    return tuple(sorted(found.values(), key=lambda one: one.numbers, reverse=True))


def _python_programs() -> Iterator[Path]:
    own = interpreter()
    seen = {own}
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or Path.home() / ".local/share/uv/python")
    folders = [
        *(Path(one) for one in os.environ.get("PATH", "").split(os.pathsep) if one),
        *_glob(pyenv, "*/bin"),
        *_glob(uv, "*/bin"),
    ]
    for folder in folders:
        for path in () if folder.name == "shims" else _glob(folder, "python3.*"):
            numbers = re.fullmatch(r"python3\.(\d+)", path.name)
            real = path.resolve() if numbers and (3, int(numbers[1])) >= _OLDEST else own
            if real not in seen and os.access(real, os.X_OK):
                seen.add(real)
                yield real


def _glob(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _probe(program: Path) -> Toolchain | None:
    try:
        answer = subprocess.run(  # noqa: S603 - a program of this machine, our own words
            [str(program), "-I", "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version, _, home = answer.stdout.strip().partition(" ")
    return Toolchain(version, program, Path(home).resolve()) if home else None


def _version_of(program: Path, *arguments: str) -> str:
    try:
        answer = subprocess.run(  # noqa: S603 - as above
            [str(program), *arguments],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=True,
            cwd="/",
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r"\d+\.\d+(?:\.\d+)?", answer.stdout)
    return found[0] if found else ""


def _on_path(name: str, *more: str) -> Path | None:
    folders = [*os.environ.get("PATH", "").split(os.pathsep), *more]
    found = (Path(folder, name) for folder in folders if folder and Path(folder).name != "shims")
    return next((path.resolve() for path in found if os.access(path, os.X_OK)), None)


Found = tuple[Toolchain | None, str, str]


def _node(asked: str) -> Found:
    default = _tool(_on_path("node", "/usr/local/bin", "/usr/bin"), "--version")
    nvm = Path(os.environ.get("NVM_DIR") or Path.home() / ".nvm") / "versions/node"
    others = [
        Toolchain(home.name.lstrip("v"), home / "bin/node", home)
        for home in _glob(nvm, "v*")
        if (home / "bin/node").exists()
    ]
    others.sort(key=lambda one: one.numbers, reverse=True)
    fitting = [one for one in (default, *others) if one and satisfies(one.numbers, asked)]
    if fitting:
        return fitting[0], "", ""
    there = default or next(iter(others), None)
    if there is None:
        return (
            None,
            "",
            (
                "the repository needs Node, and this machine has none; install it (apt-get install "
                "nodejs npm) and start again"
            ),
        )
    return (
        there,
        f"the repository asks for Node {asked}; going on with {there.version}, which is here",
        "",
    )


def _go(asked: str) -> Found:
    default = _tool(_on_path("go", "/usr/local/go/bin", "/usr/bin"), "env", "GOVERSION")
    places = (
        Path.home() / "sdk",
        Path("/usr/local"),
        Path("/usr/lib"),
        Path.home() / "go/pkg/mod/golang.org",
    )
    homes = [
        home
        for place in places
        for home in (*_glob(place, "go[-0-9]*"), *_glob(place, "toolchain@*"))
        if (home / "bin/go").exists()
    ]
    others = [
        Toolchain(found[1], home / "bin/go", home)
        for home in homes
        if (found := re.search(r"(\d+\.\d+(?:\.\d+)?)", home.name))
    ]
    least = tuple(int(number) for number in re.findall(r"\d+", asked)[:3])
    fitting = [
        one
        for one in (default, *sorted(others, key=lambda one: one.numbers, reverse=True))
        if one and one.numbers >= least
    ]
    if fitting:
        return fitting[0], "", ""
    there = ", ".join(one.version for one in (default, *others) if one) or "none"
    return (
        default,
        "",
        (
            f"the repository needs Go {asked or ''}".rstrip()
            + f", and this machine has {there}; install it (golang's own archive below "
            "/usr/local/go, or `go install golang.org/dl/goVERSION@latest` and its download) and "
            "start again"
        ),
    )


def _rust(asked: str) -> Found:
    rustup = Path(os.environ.get("RUSTUP_HOME") or Path.home() / ".rustup")
    homes = {
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
        (name for name in homes if asked and (name == asked or name.startswith(f"{asked}-"))), ""
    )
    note = f"the repository asks for Rust {asked}; going on with " if asked and not name else ""
    name = name or (
        default
        if default in homes
        else next(iter(sorted(homes, key=lambda one: ("stable" not in one, one))), "")
    )
    if name:
        return (
            Toolchain(name, homes[name] / "bin/cargo", homes[name]),
            note and f"{note}{name}, which is here",
            "",
        )
    system = _on_path("cargo", "/usr/bin") if not homes else None
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
    return Toolchain(_version_of(program, *arguments), program, program.parent.parent)
