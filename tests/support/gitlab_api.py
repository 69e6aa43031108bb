"""GitLab's REST API over the fake forge: requests become those of GitHub's API, and its documents
GitLab's. Merge requests have numbers of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from support.forge import FakeForge
    from support.githttp import Answer

Data = dict[str, Any]
FIRST = 500
"""Added to the number of a pull request, which is one of its own."""
_ROOT, _PROJECT = "/api/v4", "/projects/acme%2Fapp"
_REPO = "/repos/acme/app"
_LEVELS = {"read": 20, "write": 30, "admin": 40}
_STATES = {"success": "success", "failure": "failed", "error": "failed", "pending": "running"}
_START = datetime(2026, 1, 1, tzinfo=UTC)
_MR = rf"{_PROJECT}/merge_requests/(\d+)"


def answer(
    forge: FakeForge, method: str, target: str, headers: Mapping[str, str], body: bytes
) -> Answer:
    """Answer a request to GitLab's API."""
    at = urlsplit(target)
    path, query = at.path.removeprefix(_ROOT), parse_qs(at.query)
    token = headers.get("Authorization", "")
    if log := re.fullmatch(rf"{_PROJECT}/jobs/(\d+)/trace", path):
        return 200, {"Content-Type": "text/plain"}, forge.jobs[log[1]][1].encode()
    response_headers = {"Content-Type": "application/json"}
    with forge.lock:
        try:
            content = json.loads(body or b"null")
            document = _answer(forge, f"{method} {path}", query, content, token)
            status = 201 if method == "POST" else 200
        except Exception as error:
            status, document = getattr(error, "status", 0), {"message": str(error)}
            if not status:
                raise
    if isinstance(document, list):
        page, size = int(query.get("page", ["1"])[0]), int(query.get("per_page", ["20"])[0])
        if page * size < len(document):
            response_headers["Link"] = f'<{forge.url}{at.path}?page={page + 1}>; rel="next"'
        document = document[(page - 1) * size : page * size]
    return status, response_headers, json.dumps(document).encode()


def _answer(
    forge: FakeForge, request: str, query: Mapping[str, list[str]], body: Any, token: str
) -> Any:
    method, _, path = request.partition(" ")

    def github(method: str, path: str, body: Any = None, **query: str) -> Any:
        call = f"{method} {path}"
        forge.calls.append(call)
        return forge.do(call, {name: [value] for name, value in query.items()}, body, token)

    for expected, pattern, act in _routes(forge, github, query, body):
        if method == expected and (match := re.fullmatch(pattern, path)):
            return act(*match.groups())
    return github("GET", "/nothing")


def _routes(
    forge: FakeForge, github: Callable[..., Any], query: Mapping[str, list[str]], body: Any
) -> Iterator[tuple[str, str, Callable[..., Any]]]:
    yield "GET", "/user", lambda: {"username": github("GET", "/user")["login"]}
    yield "GET", _PROJECT, lambda: github("GET", _REPO)
    yield (
        "GET",
        f"{_PROJECT}/issues",
        lambda: [
            _issue(item)
            for item in github(
                "GET", f"{_REPO}/issues", labels=query.get("labels", [""])[0], state="open"
            )
        ],
    )
    yield (
        "GET",
        rf"{_PROJECT}/issues/(\d+)",
        lambda number: _issue(github("GET", f"{_REPO}/issues/{number}")),
    )
    yield (
        "GET",
        rf"{_PROJECT}/issues/(\d+)/notes",
        lambda number: [_system(), *map(_note, github("GET", f"{_REPO}/issues/{number}/comments"))],
    )
    yield (
        "POST",
        rf"{_PROJECT}/issues/(\d+)/notes",
        lambda number: _note(github("POST", f"{_REPO}/issues/{number}/comments", body)),
    )
    yield "GET", _MR, lambda iid: _merge_request(github("GET", f"{_REPO}/pulls/{_number(iid)}"))
    yield (
        "GET",
        f"{_PROJECT}/merge_requests",
        lambda: [
            {**_merge_request(item), "diff_refs": None}
            for item in github("GET", f"{_REPO}/pulls")
            if item["head"]["ref"] == query["source_branch"][0]
            and item["user"]["login"] == query["author_username"][0]
        ],
    )
    yield (
        "POST",
        f"{_PROJECT}/merge_requests",
        lambda: _merge_request(github("POST", f"{_REPO}/pulls", _new_pull(body))),
    )
    yield (
        "GET",
        rf"{_MR}/notes",
        lambda iid: sorted(_pull_notes(forge, github, _number(iid)), key=lambda note: note["id"]),
    )
    yield (
        "POST",
        rf"{_MR}/notes",
        lambda iid: _note(github("POST", f"{_REPO}/issues/{_number(iid)}/comments", body)),
    )
    yield (
        "GET",
        rf"{_MR}/reviewers",
        lambda iid: _reviewers(github("GET", f"{_REPO}/pulls/{_number(iid)}/reviews")),
    )
    yield (
        "GET",
        rf"{_PROJECT}/members/all",
        lambda: _members(github("GET", f"{_REPO}/collaborators/{query['query'][0]}/permission")),
    )
    yield (
        "POST",
        rf"{_PROJECT}/statuses/([0-9a-f]{{40}})",
        lambda sha: github("POST", f"{_REPO}/statuses/{sha}", _new_status(body)),
    )
    yield (
        "GET",
        rf"{_PROJECT}/repository/commits/([0-9a-f]{{40}})/statuses",
        lambda sha: [
            _status(item) for item in github("GET", f"{_REPO}/commits/{sha}/status")["statuses"]
        ],
    )
    yield (
        "GET",
        rf"{_PROJECT}/jobs/(\d+)",
        lambda job: {"commit": {"id": github("GET", f"{_REPO}/actions/jobs/{job}")["head_sha"]}},
    )


def _number(iid: str) -> int:
    return int(iid) - FIRST


def _issue(item: Data) -> Data:
    return {
        "iid": item["number"],
        "title": item["title"],
        "description": item["body"],
        "author": {"username": item["user"]["login"]},
        "labels": [label["name"] for label in item["labels"]],
    }


def _merge_request(item: Data) -> Data:
    is_own = item["head"]["repo"]["full_name"] == "acme/app"
    return {
        "iid": FIRST + int(item["number"]),
        "state": {"open": "opened"}.get(item["state"], item["state"]),
        "title": item["title"],
        "description": item["body"],
        "author": {"username": item["user"]["login"]},
        "source_branch": item["head"]["ref"],
        "target_branch": item["base"]["ref"],
        "sha": item["head"].get("sha"),
        "diff_refs": {"base_sha": item["base"].get("sha")},
        "source_project_id": 1 if is_own else 2,
        "target_project_id": 1,
    }


def _new_pull(body: Data) -> Data:
    return {
        "title": body["title"],
        "body": body["description"],
        "head": body["source_branch"],
        "base": body["target_branch"],
    }


def _created_at(number: int) -> str:
    """Return when a comment or review was written: they are minutes apart."""
    return (_START + timedelta(minutes=2 * number)).isoformat()


def _note(item: Data, index: int = 0) -> Data:
    return {
        "id": 10 * item["id"] + index,
        "body": item["body"],
        "author": {"username": item["user"]["login"]},
        "created_at": _created_at(item["id"]),
        "system": False,
    }


def _system() -> Data:
    return {
        "id": 1,
        "body": "added 1 commit",
        "author": {"username": "moothall-bot"},
        "created_at": _created_at(0),
        "system": True,
    }


def _pull_notes(forge: FakeForge, github: Callable[..., Any], number: int) -> Iterator[Data]:
    yield _system()
    yield from map(_note, github("GET", f"{_REPO}/issues/{number}/comments"))
    for review in github("GET", f"{_REPO}/pulls/{number}/reviews"):
        yield _note(review)
        for index, remark in enumerate(review["remarks"], 1):
            position = {"new_path": remark["path"], "new_line": 1}
            note = {**review, "body": remark["body"]}
            yield {**_note(note, index), "type": "DiffNote", "position": position}


def _reviewers(reviews: list[Data]) -> list[Data]:
    states = {
        review["user"]["login"]: "requested_changes"
        if review["state"] == "CHANGES_REQUESTED"
        else "reviewed"
        for review in reviews
    }
    return [{"user": {"username": login}, "state": state} for login, state in states.items()]


def _members(permission: Data) -> list[Data]:
    login, level = permission["user"]["login"], _LEVELS[permission["permission"]]
    return [
        {"username": f"{login}2", "access_level": 50, "state": "active"},
        {"username": login, "access_level": level, "state": "active"},
    ]


def _new_status(body: Data) -> Data:
    state = {"failed": "failure"}.get(body["state"], body["state"])
    return {"state": state, "context": body["name"], "description": body["description"]}


def _status(item: Data) -> Data:
    return {
        "name": item["context"],
        "status": _STATES[item["state"]],
        "description": item["description"],
        "target_url": item.get("target_url"),
        "created_at": item["updated_at"],
        "allow_failure": item["context"] == "allowed",
    }
