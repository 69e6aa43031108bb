"""`moothall judge` and `moothall verify`: changes of small projects, with the recorded replies of a
strong model that wrote tests for the task, and without a model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from command import SOLVED, Command, git
from moothall.testing.model import NativeReply, Reply, call_id_of, scripted_model, seat_of
from support import gitlab_api
from support.forge import REPOSITORY, TOKENS, fake_forge, place_of
from support.pools import Pool, read_pool

pytestmark = [pytest.mark.e2e, pytest.mark.evidence]

_POOLS = Path(__file__).parent / "pools"
_RECORDINGS = Path(__file__).parent.parent / "recordings" / "pools"
_NO_MODEL = ("--model", "none")
_IDENTITY = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")


class Agents:
    """A test writer that replies as recorded, a reviewer, and a reader who says whether the task
    asks for the tests that a change fails.
    """

    def __init__(self, replies: Mapping[str, Any], *, asked_for: bool) -> None:
        self._replies = replies
        requirement = {"test": 1, "why": "The task asks for it."}
        self._required = {"required": [requirement] if asked_for else []}

    def answer(self, _body: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
        """Return the reply to a call. Raises `KeyError` for an unexpected one."""
        call = call_id_of(headers).partition("/")[2]
        if seat_of(headers) == "reviewer":
            return json.dumps({"score": 6, "met": [], "unmet": [], "comment": "It reads well."})
        if call.startswith("test-writer/verify/") and int(call[19:].partition(".")[0]) > 2:
            return json.dumps(self._required)
        reply = self._replies[call]
        calls = tuple((item["name"], item["arguments"]) for item in reply.get("calls", ()))
        return NativeReply(calls, reply.get("text", "")) if calls else reply["text"]


def _commit(folder: Path, branch: str, files: Mapping[str, str | None]) -> None:
    """Commit files, None for those to delete, as a branch of the parent."""
    git(folder, "checkout", "--quiet", "-b", branch, "parent")
    for name, text in files.items():
        path = folder / name
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    git(folder, "add", "--all")
    git(folder, *_IDENTITY, "commit", "--quiet", "--message", f"The {branch} change")
    git(folder, "checkout", "--quiet", "parent")


def _create_branches(pool: Pool, folder: Path) -> dict[str, bool]:
    """Create a branch for each candidate of a pool; return whether it is right."""
    pool.create_repository(folder)
    branches = {}
    for number, candidate in enumerate(pool.candidates):
        branch = f"candidate-{number}"
        _commit(folder, branch, pool.files(candidate))
        branches[branch] = candidate.right
    return branches


@pytest.mark.parametrize("name", ["python_slugs", "go_pairs", "node_query", "rust_wrap"])
async def test_an_independent_test_separates_right_changes_from_wrong_ones(
    tmp_path: Path, name: str
) -> None:
    pool = read_pool(_POOLS / f"{name}.toml")
    pool.skip_without_program()
    replies = json.loads((_RECORDINGS / f"{name}.json").read_text(encoding="utf-8"))
    branches = _create_branches(pool, tmp_path / "repository")
    # The task of node_query says nothing about names that every object has, which a test is about.
    agents = Agents(replies, asked_for=name != "node_query")
    async with scripted_model(agents.answer, tools=True) as model:
        command = Command(tmp_path / "data", model.base_url, {"MOOTHALL_LLM__RETRIES": "0"})
        verdicts = {
            branch: await command(
                *("judge", "--repo", str(tmp_path / "repository"), "--base", "parent"),
                *("--head", branch, "--task", pool.task, "--require", "reproduced", "--json"),
                seconds=600,
            )
            for branch in branches
        }
    levels = {branch: result.document["level"] for branch, result in verdicts.items()}
    assert {branch: level == "reproduced" for branch, level in levels.items()} == branches
    assert {branch: result.code == 0 for branch, result in verdicts.items()} == branches
    assert {result.document["finding"] for result in verdicts.values()} == {"passed"}
    assert all(result.document["reviews"] for result in verdicts.values())
    rows = verdicts["candidate-0"].document["matrix"]
    assert {row["author"] for row in rows} == {"test-writer"}


async def test_changes_are_judged_without_a_model(tmp_path: Path) -> None:
    """A right change with its tests, an untested one, a broken one, and one that edits tests."""
    pool = read_pool(_POOLS / "python_slugs.toml")
    folder = tmp_path / "repository"
    _create_branches(pool, folder)
    right = pool.files(next(item for item in pool.candidates if item.right))
    (source,) = right
    broken = pool.base[source].replace('"untitled"', '"nameless"')
    test = "tests/test_slugs.py"
    edited = pool.base[test].replace('"untitled"', '"nameless"')
    _commit(folder, "tested", {**right, **pool.new_file})
    _commit(folder, "broken", {source: broken})
    _commit(folder, "edited", {source: broken, test: edited})
    _commit(folder, "deleted", {source: broken, test: None, **pool.new_file})
    _commit(folder, "notes", {"NOTES.md": "Notes on slugs.\n"})
    git(folder, "branch", "squashed", "parent")
    command = Command(tmp_path / "data")

    async def judge(head: str, *options: str, base: str = "parent") -> Any:
        place = ("--repo", str(folder), "--base", base, "--head", head)
        return await command("judge", *place, "--json", *_NO_MODEL, *options, seconds=300)

    results = {
        head: await judge(head)
        for head in ("tested", "candidate-0", "broken", "edited", "deleted", "notes")
    }
    findings = {
        head: (result.code, result.document["finding"], result.document["level"])
        for head, result in results.items()
    }
    assert findings == {
        "tested": (0, "passed", "self-tested"),
        "candidate-0": (0, "passed", "unproven"),
        "broken": (3, "broken", "unproven"),
        "edited": (3, "disputed", "self-tested"),
        "deleted": (3, "broken", "unproven"),
        "notes": (0, "passed", "unproven"),
    }
    assert results["tested"].document["task"] == "The tested change"
    assert not results["tested"].document["unnoticed"]
    assert results["candidate-0"].document["unnoticed"]
    assert results["edited"].document["edited_tests"] == [f"{test}::test_slugify"]
    assert "No model was used" in results["notes"].document["not_judged"][0]
    assert git(folder, "branch", "--list", "moothall/*") == ""
    merged = await judge("squashed")
    assert merged.code == 2, merged
    assert "there is nothing to judge" in merged.err


async def test_a_changed_byte_of_a_signed_statement_fails(tmp_path: Path) -> None:
    pool = read_pool(_POOLS / "python_slugs.toml")
    folder = tmp_path / "repository"
    _create_branches(pool, folder)
    command, statement = Command(tmp_path / "data"), tmp_path / "verdict.json"
    judged = await command(
        *("judge", "--repo", str(folder), "--base", "parent", "--head", "candidate-0"),
        *("--statement", str(statement), "--sarif", str(tmp_path / "verdict.sarif"), *_NO_MODEL),
        seconds=300,
    )
    assert judged.code == 0, judged
    verified = await command("verify", str(statement), "--json")
    head = git(folder, "rev-parse", "candidate-0")
    assert verified.code == 0, verified
    assert verified.document["subject"][0]["digest"] == {"gitCommit": head}
    assert (await command("verify", str(statement), "--require", "proven")).code == 3
    changed = bytearray(statement.read_bytes())
    changed[len(changed) // 2] ^= 1
    statement.write_bytes(changed)
    assert (await command("verify", str(statement))).code == 1
    sarif = json.loads((tmp_path / "verdict.sarif").read_text(encoding="utf-8"))
    rules = {result["ruleId"] for result in sarif["runs"][0]["results"]}
    assert rules == {"verdict", "unnoticed"}


@pytest.mark.parametrize("kind", ["gitea", "github", "gitlab"])
async def test_a_pull_request_of_a_forge_is_judged_and_gets_a_status(
    tmp_path: Path, kind: str
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKENS["moothall-bot"], encoding="utf-8")
    with fake_forge(tmp_path, kind) as forge:
        clone = tmp_path / "clone"
        git(tmp_path, "clone", "--quiet", str(forge.repo.path), str(clone))
        source = clone / "src/utils.py"
        source.write_text(source.read_text(encoding="utf-8") + SOLVED, encoding="utf-8")
        git(clone, *_IDENTITY, "commit", "--quiet", "--all", "--message", "Solve it")
        git(clone, "push", "--quiet", "origin", "HEAD:feature")
        ada = place_of(forge).person("ada")
        body = {"title": "Add hello_world()", "body": "It is missing."}
        number = ada("POST", "/pulls", **body, head="feature", base="main")["number"]
        settings = {
            "MOOTHALL_FORGE__KIND": kind,
            "MOOTHALL_FORGE__URL": forge.url,
            "MOOTHALL_FORGE__TOKEN_FILE": str(token),
            "MOOTHALL_WORKSPACE__ALLOWED_SCHEMES": '["http"]',
        }
        command = Command(tmp_path / "data", extra=settings)
        place = {
            "gitea": f"pulls/{number}",
            "github": f"pull/{number}",
            "gitlab": f"-/merge_requests/{gitlab_api.FIRST + number}",
        }[kind]
        url = f"{forge.url}/{REPOSITORY}/{place}"
        result = await command("judge", "--pr", url, "--json", "--status", *_NO_MODEL, seconds=300)
        assert result.code == 0, result
        verdict = result.document
        assert (verdict["finding"], verdict["level"]) == ("passed", "proven")
        assert verdict["task"] == "Add hello_world()\n\nIt is missing."
        ((sha, (status,)),) = forge.statuses.items()
        state = status["status" if kind == "gitea" else "state"]
        assert (sha, state) == (forge.sha("feature"), "success")
        unknown = await command("judge", "--pr", f"{forge.url}/{REPOSITORY}/issues/1")
        assert unknown.code == 2
        assert "is not the URL of a pull request" in unknown.err
