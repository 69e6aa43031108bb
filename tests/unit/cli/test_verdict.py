from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from moothall.cli.verdict import MatrixRow, VerdictDocument
from moothall.cli.verdict_formats import (
    InvalidStatement,
    headline,
    load_public_key,
    load_signing_key,
    sarif_document,
    sign_verdict,
    verdict_markdown,
    verify_statement,
)
from moothall.domain.proposal import Review
from moothall.errors import ConfigurationError

VERDICT = VerdictDocument(
    task_id="task-1",
    repository="https://git.example/acme/app.git",
    base="a" * 40,
    head="b" * 40,
    task="Return 0",
    finding="passed",
    level="reproduced",
    required="unproven",
    accepted=True,
)


def test_a_change_to_any_byte_of_a_signed_statement_is_detected(tmp_path: Path) -> None:
    raw = sign_verdict(VERDICT, load_signing_key(None, tmp_path)).encode()
    key = load_public_key(None, tmp_path)
    statement = verify_statement(raw, key)
    assert statement["subject"][0]["digest"] == {"gitCommit": "b" * 40}
    assert statement["predicate"]["level"] == "reproduced"
    for position in range(len(raw)):
        changed = bytearray(raw)
        changed[position] ^= 1
        with pytest.raises(InvalidStatement):
            verify_statement(bytes(changed), key)
    for changed_raw in (raw + b"\n", raw[:-1], b"", b"{}", b"[" * 100_000):
        with pytest.raises(InvalidStatement):
            verify_statement(changed_raw, key)


def test_a_statement_signed_with_another_key_is_invalid(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    raw = sign_verdict(VERDICT, load_signing_key(None, tmp_path / "other")).encode()
    load_signing_key(None, tmp_path)
    assert (tmp_path / "judge.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidStatement, match="another key"):
        verify_statement(raw, load_public_key(None, tmp_path))


def test_an_invalid_key_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_text("no key", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="not an unencrypted private key"):
        load_signing_key(path, tmp_path)
    with pytest.raises(ConfigurationError, match="not a public key"):
        load_public_key(path, tmp_path)
    with pytest.raises(ConfigurationError, match="signed nothing yet"):
        load_public_key(None, tmp_path)


def test_sarif_results_have_locations() -> None:
    verdict = replace(
        VERDICT,
        finding="disputed",
        matrix=(
            MatrixRow("tests/test_a.py::test_x", "repository", "passed", {"change": "failed"}),
            MatrixRow("tests/test_a.py::test_y", "repository", "passed", {"change": "failed"}),
        ),
        edited_tests=("tests/test_a.py::test_y",),
        unnoticed=("src/a.py:3-7", "src/new.py (new)"),
        look=("src/a.py:4: it ends the process",),
        reviews=(Review("reviewer", "change", 0.4, comment="It misses None.\x1b"),),
    )
    log = json.loads(sarif_document(verdict))
    results = [
        (
            result["ruleId"],
            result["level"],
            result.get("locations", [{}])[0].get("physicalLocation", {}),
        )
        for result in log["runs"][0]["results"]
    ]
    test = {"artifactLocation": {"uri": "tests/test_a.py"}}
    source = {"uri": "src/a.py"}
    assert results == [
        ("verdict", "warning", {}),
        ("broken-test", "error", test),
        ("edited-test", "warning", test),
        (
            "unnoticed",
            "note",
            {"artifactLocation": source, "region": {"startLine": 3, "endLine": 7}},
        ),
        ("unnoticed", "note", {"artifactLocation": {"uri": "src/new.py"}}),
        ("look", "note", {"artifactLocation": source, "region": {"startLine": 4, "endLine": 4}}),
        ("review", "note", {}),
    ]
    assert "\x1b" not in log["runs"][0]["results"][-1]["message"]["text"]


def test_the_headline_names_finding_and_level() -> None:
    about = f"{'b' * 12} on {'a' * 12}"
    assert headline(VERDICT) == f"Reproduced: {about} breaks nothing"
    insufficient = replace(VERDICT, level="self-tested", required="reproduced", accepted=False)
    assert headline(insufficient) == (
        f"Self-tested: {about} breaks nothing, below the required reproduced"
    )
    assert headline(replace(VERDICT, finding="broken")) == f"Broken: {about}"
    none = replace(VERDICT, finding="none", error="no test ran")
    assert headline(none) == f"No verdict on {about}: no test ran"


def test_markdown_renders_foreign_text_literally() -> None:
    text = verdict_markdown(replace(VERDICT, reasons=("<img> @everyone",), look=("a|b",)))
    assert "<img>" not in text
    assert "@everyone" not in text
