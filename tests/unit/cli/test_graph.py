"""The answers of `moothall graph`, as printed."""

from __future__ import annotations

from rich.console import Console

from moothall.cli.graph import show_provenance


def test_the_decisions_on_a_commit_are_sentences() -> None:
    deliberation = {
        "task_id": "task-1", "branch": "moothall/task-1", "role": "dev", "protocol": "vote",
        "principal": "ada", "asked_at": None, "decided_at": None, "evidence_level": "proven",
        "final_state": "committed",
    }  # fmt: skip
    proposal: dict[str, object] = {
        "candidate": "agent-dev-001",
        "score": None,
        "paths": [],
        "reasons": [],
    }
    decisions = [
        {"approver": "ada", "decision": "changes", "comment": "Use a set"},
        {"approver": "bob", "decision": "approved", "comment": ""},
    ]
    row = {
        "commit": "0" * 40, "deliberation": deliberation, "proposal": proposal, "story": None,
        "task": {"task_id": "task-1", "description": "Add it"}, "repository": None,
        "seat": {"seat": "agent-dev-001", "approach": ""}, "decisions": decisions,
        "evidence": [], "reviews": [], "model_calls": [], "tool_calls": [],
    }  # fmt: skip
    console = Console(width=100, record=True)
    show_provenance(console, row)
    printed = [line.strip(" │├└─") for line in console.export_text().splitlines()]
    assert printed[-2:] == ["ada requested changes: Use a set", "bob approved"]
