"""The first prompt's description of the sandbox."""

from __future__ import annotations

from moothall.deliberation.prompts.tool_prompt import Overview, environment_text
from moothall.domain.repository import Base, BuildStep, Prepared, Profile


def environment_lines(needs: dict[str, str], *notes: str) -> list[str]:
    prepared = Prepared(Base("r", "0" * 40, Profile(needs=needs)), "k", (), notes=notes)
    return environment_text(prepared, Overview()).splitlines()[1:-1]


def test_a_language_without_a_version_is_left_out() -> None:
    assert environment_lines({"rust": ""}) == []
    assert environment_lines({"rust": "", "node": ">=20", "python-pin": "3.11"}) == [
        "The project asks for node >=20, python (pinned) 3.11."
    ]


def test_a_different_version_of_the_sandbox_is_reported() -> None:
    note = "the repository asks for Node >=22; going on with 20.20.2, which is here"
    assert environment_lines({"node": ">=22"}, note) == [
        "The repository asks for Node >=22; going on with 20.20.2, which is here."
    ]
    assert (
        environment_lines({"node": ">=22", "python": ">=3.9"}, note)[0]
        == "The project asks for python >=3.9."
    )


def test_a_seat_learns_how_the_checks_build_what_they_run() -> None:
    profile = Profile(
        checks={"tests": ("ctest",)},
        folders={"tests": "c"},
        builds=(BuildStep(("cmake", "--build", "my build"), "c"),),
    )
    prepared = Prepared(Base("r", "0" * 40, profile), "k", ())
    assert environment_text(prepared, Overview()).splitlines()[1:] == [
        "- build, before each check (in c): cmake --build 'my build'",
        "- tests (in c): ctest: not run yet",
    ]
