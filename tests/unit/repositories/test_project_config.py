from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.errors import AlreadyExists
from moothall.repositories.profile import (
    CONFIG_FILE,
    Commands,
    commands_of,
    make_profile,
    parse_config_file,
    to_toml,
    write_config_file,
)

WORDS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20),
    min_size=1,
    max_size=4,
)
ARGV = WORDS.filter(lambda words: bool(words[0].strip())).map(tuple)
TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
OUTPUT_TEXT = st.fixed_dictionaries(
    {
        "setup": st.lists(ARGV, max_size=3),
        "checks": st.dictionaries(
            st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True), ARGV, max_size=3
        ),
        "protected": st.lists(TEXT, max_size=3),
        "known_failures": st.lists(TEXT, max_size=3),
    }
)


@given(OUTPUT_TEXT)
def test_a_written_config_file_is_read_back_unchanged(fields: dict[str, object]) -> None:
    commands = Commands.model_validate(fields)
    assert parse_config_file(to_toml(commands)) == commands


PROJECT = {
    "pyproject.toml": (
        '[project]\nname = "a"\nversion = "1"\n[build-system]\nrequires = []\n[tool.ruff]\n'
        "line-length = 100\n"
    ),
    "tests/test_a.py": "",
    "requirements-dev.txt": "attrs\n",
}
NODE = {"package.json": '{"scripts": {"test": "node --test"}}', "a.test.js": ""}
GO = {"go.mod": "module a\n", "a_test.go": ""}


@pytest.mark.parametrize("texts", [PROJECT, NODE, GO, {"README": ""}])
def test_a_written_config_file_gives_the_same_profile(texts: dict[str, str]) -> None:
    detected = make_profile(dict.fromkeys(texts, "0"), texts)
    config_text = to_toml(commands_of(detected))
    reread = make_profile(
        dict.fromkeys([*texts, CONFIG_FILE], "0"), {**texts, CONFIG_FILE: config_text}
    )
    assert (reread.setup, dict(reread.checks), reread.known_failures) == (
        detected.setup,
        dict(detected.checks),
        detected.known_failures,
    )
    assert set(reread.protected) == set(detected.protected)
    assert (reread.advisory, dict(reread.folders)) == (detected.advisory, dict(detected.folders))


def test_an_existing_config_file_is_overwritten_only_if_forced(tmp_path: Path) -> None:
    path = write_config_file(tmp_path, "a", replace=False)
    with pytest.raises(AlreadyExists, match="--force overwrites it"):
        write_config_file(tmp_path, "b", replace=False)
    assert path.read_text(encoding="utf-8") == "a"
    write_config_file(tmp_path, "b", replace=True)
    assert path.read_text(encoding="utf-8") == "b"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine", encoding="utf-8")
    (tmp_path / CONFIG_FILE).symlink_to(tmp_path / "precious")
    with pytest.raises(Exception, match="cannot be written"):
        write_config_file(tmp_path, "b", replace=True)
    assert (tmp_path / "precious").read_text(encoding="utf-8") == "mine"
