from __future__ import annotations

import platform

import pytest

from moothall.app.command_repository import RepositoryCheck
from moothall.domain.repository import Base, Profile
from moothall.sandbox.bubblewrap import interpreter
from moothall.workspace.layout import environment_key
from moothall.workspace.toolchains import choose, current_python, pythons


def test_the_servers_own_python_is_used_if_it_fits() -> None:
    for needs in (
        {},
        {"python": ""},
        {"python": ">=3.8"},
        {"python": ">=3.6, <4"},
        {"python": "not a version"},
    ):
        chosen = choose(needs)
        assert chosen.python == current_python()
        assert chosen.python.program == interpreter()
        assert not chosen.missing


@pytest.mark.e2e  # starts every installed Python
def test_a_fitting_python_is_found_on_the_machine() -> None:
    other_pythons = [
        python for python in pythons() if python.numbers[:2] != current_python().numbers[:2]
    ]
    if not other_pythons:
        pytest.skip("this machine has one Python; e.g. uv python install 3.12")
    other_python = other_pythons[0]
    minor = f"{other_python.numbers[0]}.{other_python.numbers[1]}"
    for needs in ({"python": f"=={minor}.*"}, {"python": "", "python-pin": minor}):
        assert choose(needs).python == other_python
    base = Base("r", "0" * 40, Profile(checks={"tests": ("python", "-m", "pytest")}))
    other_base = Base(
        "r", "0" * 40, Profile(checks=base.profile.checks, needs={"python": f"=={minor}.*"})
    )
    assert environment_key(base) != environment_key(other_base)
    assert RepositoryCheck(other_base, None, None, 0.0).interpreter == str(other_python.program), (
        "and `moothall check` names it"
    )


@pytest.mark.e2e  # starts every installed Python
def test_if_none_fits_the_needed_and_available_ones_are_listed() -> None:
    missing = choose({"python": ">=9.1"}).missing
    assert "needs Python >=9.1" in missing
    assert platform.python_version() in missing
    assert "install" in missing
    assert choose({"go": "99.0"}).missing.startswith("the repository needs Go 99.0")


def test_missing_optional_parts_are_reported() -> None:
    chosen = choose({"rust": "nightly-1999-01-01"})
    if chosen.missing:
        pytest.skip("this machine has no Rust; rustup or apt-get install cargo")
    assert "asks for Rust nightly-1999-01-01; going on with" in chosen.notes[0]
