from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.sandbox_runtime.cases import MAX_CASES, MORE, Cases, read_folder, read_junit

JUNIT = """<testsuites><testsuite>
<testcase classname="a.B" name="one" time="0.5"/>
<testcase classname="a.B" name="two"><failure message="no">at line 3</failure></testcase>
<testcase classname="a.B" name="three"><skipped/></testcase>
<testcase classname="a.B" name="one"><error>x</error></testcase>
<testcase name="bare"/>
</testsuite></testsuites>"""


def write(folder: Path, *lines: object) -> None:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "pytest-1.jsonl").write_text(text, encoding="utf-8")


def test_addresses_in_case_names_are_masked() -> None:
    cases = Cases()
    cases.add_result("TestAs/As((*errors.errorString)(0xc000012ab0))", "passed")
    cases.add_result("test_it[<object at 0x7f12a45b3c40>]", "passed")
    cases.add_result("test_hash[0xdeadbeef-0xcbf29ce484222325]", "passed")
    assert list(cases.results) == [
        "TestAs/As((*errors.errorString)(0x…))",
        "test_it[<object at 0x…>]",
        "test_hash[0xdeadbeef-0xcbf29ce484222325]",
    ]


def test_case_lines_are_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"start": "a"},
        {"case": "a", "result": "passed", "ms": 12},
        {"start": "b"},
        {"case": "b", "result": "failed", "detail": "why"},
        {"case": "b", "result": "passed"},
        {"start": "c"},
        {"case": "d", "result": "nonsense"},
        {"end": 1},
    )
    cases = Cases()
    read_folder(cases, str(tmp_path))
    assert cases.results == {"a": "passed", "b": "failed"}
    assert (cases.details, cases.ms, list(cases.running), cases.is_finished) == (
        {"b": "why"},
        {"a": 12},
        ["c"],
        True,
    )
    cases.fail_running("hit the limit of 3 s")
    assert (cases.results["c"], cases.details["c"]) == ("failed", "hit the limit of 3 s")


def test_junit_reports_are_read(tmp_path: Path) -> None:
    (tmp_path / "r.xml").write_text(JUNIT, encoding="utf-8")
    cases = Cases()
    read_junit(cases, str(tmp_path / "r.xml"))
    assert cases.results == {
        "a.B::one": "passed",
        "a.B::two": "failed",
        "a.B::three": "skipped",
        "a.B::one #2": "errored",
        "bare": "passed",
    }
    assert cases.details["a.B::two"] == "no\nat line 3"
    assert cases.ms == {"a.B::one": 500}


def test_invalid_reports_are_ignored(tmp_path: Path) -> None:
    cases = Cases()
    (tmp_path / "broken.xml").write_text(
        "<testsuites><testcase name='a' classname='b'>", encoding="utf-8"
    )
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12))
    (tmp_path / "bomb.xml").write_text(
        f'<!DOCTYPE x [<!ENTITY e0 "lol">{entities}]><testcase name="&e11;"/>', encoding="utf-8"
    )
    (tmp_path / "deep.xml").write_text("<a>" * 100_000, encoding="utf-8")
    (tmp_path / "link.xml").symlink_to(tmp_path / "broken.xml")
    os.mkfifo(tmp_path / "pipe.xml")
    for name in ("absent.xml", "broken.xml", "bomb.xml", "deep.xml", "link.xml", "pipe.xml", "."):
        read_junit(cases, str(tmp_path / name))
    os.mkfifo(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").symlink_to("/dev/zero")
    (tmp_path / "c.jsonl").mkdir()
    write(
        tmp_path,
        "[" * 100_000,
        '"text"',
        '{"case": "x", "result": "passed", "ms": 1e400}',
        '{"case": [1], "result": {}}',
        "\x00",
    )
    read_folder(cases, str(tmp_path))
    read_folder(cases, str(tmp_path / "absent"))
    assert cases.results == {}


def test_long_reports_are_bounded(tmp_path: Path) -> None:
    lines = [
        {"case": f"c{number}", "result": "failed", "detail": "x" * 9000} for number in range(2000)
    ]
    write(tmp_path, *lines)
    cases = Cases()
    read_folder(cases, str(tmp_path))
    assert len(cases.results) <= MAX_CASES
    assert sum(map(len, cases.details.values())) <= 400_000
    cases.add_result("y" * 10_000, "passed")
    assert max(map(len, cases.results)) == 500


def test_failures_beyond_the_maximum_number_of_cases_are_counted() -> None:
    cases = Cases()
    for number in range(MAX_CASES + 10):
        cases.add_result(f"c{number}", "failed" if number == MAX_CASES + 5 else "passed")
    assert len(cases.results) == MAX_CASES
    assert cases.results[MORE] == "failed"


@given(st.binary(max_size=2000))
def test_any_report_bytes_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("reports")
    (folder / "a.jsonl").write_bytes(data)
    (folder / "a.xml").write_bytes(data)
    cases = Cases()
    read_folder(cases, str(folder))
    read_junit(cases, str(folder / "a.xml"))
    json.dumps(cases.results).encode()


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
objects = st.dictionaries(
    st.sampled_from(["case", "start", "end", "result", "ms", "detail"]),
    leaves | st.lists(leaves, max_size=2),
)


@given(st.lists(objects, max_size=10))
def test_any_report_line_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, object]]
) -> None:
    folder = tmp_path_factory.mktemp("reports")
    write(folder, *lines)
    cases = Cases()
    read_folder(cases, str(folder))
    assert set(cases.results.values()) <= {"passed", "failed", "errored", "skipped"}
