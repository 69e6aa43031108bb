from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moothall.cli.documents import (
    CheckDocument,
    CleanDocument,
    KeptEntry,
    TasksDocument,
    answer_document,
    outcome_document,
    schemas,
)
from moothall.domain.codec import dump
from moothall.domain.evidence import Verdict
from moothall.domain.ids import TaskId
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.status import TaskView
from moothall.ranking.baseline import CheckRow

FOLDER = Path(__file__).parents[3] / "docs" / "schemas"
ENDED = Outcome("t", DeliberationStatus.COMPLETED)
CHECKED = CheckDocument(
    "r",
    "/r",
    "a",
    True,
    "",
    "",
    (),
    {"tests": ("x",)},
    (CheckRow("tests", Verdict.PASSED),),
    "",
    "",
    "",
    1.0,
)


def test_the_published_schemas_match_the_code() -> None:
    published = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.json")
    }
    assert published == json.loads(json.dumps(schemas())), "run scripts/schemas.py"


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("deliberate", outcome_document(ENDED)),
        ("ask", answer_document(ENDED, ("a",))),
        ("check", dump(CHECKED)),
        (
            "list",
            dump(
                TasksDocument(
                    served=True, tasks=(TaskView(TaskId("t"), DeliberationStatus.PENDING),)
                )
            ),
        ),
        (
            "clean",
            dump(CleanDocument(dry_run=True, refused="", kept=(KeptEntry("clone", "/x", 1, 2.0),))),
        ),
    ],
)
def test_a_document_has_a_version_and_the_fields_of_its_schema(
    name: str, document: dict[str, Any]
) -> None:
    schema = schemas()[name]
    assert set(document) == set(schema["properties"])
    assert document["version"] == schema["properties"]["version"]["const"] == 1
    assert json.loads(json.dumps(document)) == document
