from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.errors import InvalidRequest, Refused
from moothall.toolkits.docker.engine import check_dockerfile


def check(text: str, *, runs: bool = False) -> tuple[str, ...]:
    return check_dockerfile(text, lambda image: image == "python:3.12", runs=runs)


@pytest.mark.parametrize(
    ("text", "images"),
    [
        ("FROM scratch\nCOPY . /\n", ()),
        ('# a comment\n\nfrom python:3.12\r\nCMD ["python"]\r\n', ("python:3.12",)),
        (
            (
                "FROM python:3.12 AS Build\nCOPY a \\\n  # between\n\n  b /\nFROM scratch\nCOPY "
                "--chown=1:1 --from=build /a /a\n"
            ),
            ("python:3.12",),
        ),
        ("FROM scratch\nCOPY --from=0 /a /a\nCOPY --from=python:3.12 /b /b", ("python:3.12",)),
        ("ARG A=1\nFROM scratch\nENV ADD=x \\\n  B=y\nWORKDIR /a\n", ()),
    ],
)
def test_allowed_instructions_are_accepted(text: str, images: tuple[str, ...]) -> None:
    assert check(text) == images


def test_run_is_accepted_if_the_operator_allows_it() -> None:
    text = "FROM python:3.12\nRUN pip --version && \\\n    true\n"
    assert check(text, runs=True) == ("python:3.12",)
    with pytest.raises(Refused, match=r"docker\.build_runs"):
        check(text)


@pytest.mark.parametrize(
    "text",
    [
        "FROM scratch\nADD a /",
        "FROM scratch\n \tadd http://a/ /",
        "FROM scratch\nA\\\nDD http://a/ /",
        "FROM scratch\n# note \\\nADD http://a/ /",
        "FROM scratch\nENV A=b\\\\\nADD http://a/ /",
        "# escape=`\nFROM scratch\nCOPY a `\nADD http://a/ /",
        "#syntax=a/b\nFROM scratch",
        "FROM ubuntu",
        "FROM python:3.12@sha256:0",
        "FROM $A",
        "FROM --platform=x python:3.12",
        "FROM scratch AS $A",
        "FROM scratch\nCOPY --from=ubuntu /a /a",
        "FROM scratch\nCOPY --link --from=ubuntu /a /a",
        "FROM scratch\nCOPY --from=$A /a /a",
        "FROM scratch\nONBUILD COPY . /",
        "FROM scratch\nVOLUME /a",
        "FROM scratch\nHEALTHCHECK CMD x",
        "FROM scratch\nCOPY <<EOT /a\nADD http://a/ /\nEOT",
        "FROM scratch\n\u00a0ADD http://a/ /",
        "FROM scratch\n\x0bADD http://a/ /",
        "FROM scratch\n\u2028ADD http://a/ /",
        "\ufeffADD http://a/ /",
    ],
)
def test_forbidden_instructions_are_refused(text: str) -> None:
    with pytest.raises(Refused):
        check(text, runs=True)


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "COPY a b", "ARG A=1\nCOPY a b", "ARG A=1"])
def test_a_file_without_from_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="must begin with FROM"):
        check(text)


WORDS = st.sampled_from(
    [
        "FROM",
        "scratch",
        "ADD",
        "add",
        "A",
        "DD",
        "COPY",
        "--from=x",
        "ONBUILD",
        "\\",
        "\\\n",
        "\n",
        " ",
        "\t",
        "x",
        "ENV a=b",
        "`",
    ]
)


@given(st.lists(WORDS, max_size=12).map("".join))
def test_no_accepted_line_begins_with_add(text: str) -> None:
    try:
        check(text, runs=True)
    except (Refused, InvalidRequest):
        return
    joined = [line.split() for line in text.replace("\\\n", "").split("\n")]
    assert not any(words and words[0].upper() in {"ADD", "ONBUILD"} for words in joined)
