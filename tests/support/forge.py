"""A fake forge over HTTP: the part of GitHub's, Gitea's or GitLab's REST API that we and the people
of a test use, with a git server beside it.

Responses, refusals and names differ by kind like those of the real ones. On GitLab, only we use its
API (`support.gitlab_api`), and the people use GitHub's. tests/forge runs the same
cases on a real Gitea.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support import gitlab_api
from support.githttp import Answer, git_server
from support.repos import Repo, make_sample

Data = dict[str, Any]
REPOSITORY = "acme/app"
TOKENS = {"moothall-bot": "bots-token-of-these-tests", "ada": "adas-token", "eve": "eves-token"}
"""The users: ourselves, a person with write access, and a stranger."""
_REPO = r"/repos/(?i:acme/app)"


class Wrong(Exception):
    def __init__(self, status: int, message: str) -> None:
        self.status, self.message = status, message


@dataclass
class FakeForge:
    """A forge with one repository, acme/app.

    Attributes:
        calls: the received requests.
        failing: makes a request fail before or after it is done.
        statuses, check_runs: by commit; of statuses, all that were set.
        apps: the accounts that may create check runs.
        jobs: the commit and the log of each job of the forge's Actions.
        storage_headers: the headers of requests to the storage that GitHub redirects to for logs.
    """

    kind: str
    root: Path
    repo: Repo
    url: str = ""
    calls: list[str] = field(default_factory=list)
    failing: Callable[[str], int] = lambda call: 0
    permissions: dict[str, str] = field(
        default_factory=lambda: {"moothall-bot": "admin", "ada": "write", "eve": "read"}
    )
    issues: dict[int, Data] = field(default_factory=dict)
    pulls: dict[int, Data] = field(default_factory=dict)
    comments: dict[int, list[Data]] = field(default_factory=dict)
    reviews: dict[int, list[Data]] = field(default_factory=dict)
    statuses: dict[str, list[Data]] = field(default_factory=dict)
    check_runs: dict[str, list[Data]] = field(default_factory=dict)
    apps: set[str] = field(default_factory=set)
    jobs: dict[str, tuple[str, str]] = field(default_factory=dict)
    storage_headers: list[Mapping[str, str]] = field(default_factory=list)
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(101))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> Answer | None:
        at = urlsplit(target)
        if self.kind == "gitlab" and at.path.startswith("/api/v4"):
            return gitlab_api.answer(self, method, target, headers, body)
        root = "/api/v1" if self.kind == "gitea" else "/api/v3"
        if not at.path.startswith(root):
            return None
        call = f"{method} {at.path.removeprefix(root)}"
        if log := self._log(call, headers):
            return log
        response_headers: dict[str, str] = {"Content-Type": "application/json"}
        with self.lock:
            self.calls.append(call)
            try:
                document = self.do(
                    call,
                    parse_qs(at.query),
                    json.loads(body or b"null"),
                    headers.get("Authorization", ""),
                )
                if isinstance(document, list):
                    document = self._page(document, at.path, parse_qs(at.query), response_headers)
                elif member := next(
                    (name for name in ("statuses", "check_runs") if name in document), ""
                ):
                    document[member] = self._page(
                        document[member], at.path, parse_qs(at.query), response_headers
                    )
                status = 201 if method == "POST" else 200
            except Wrong as error:
                status, document = error.status, {"message": error.message}
        return status, response_headers, json.dumps(document).encode()

    def _log(self, call: str, headers: Mapping[str, str]) -> Answer | None:
        """Return the log of a job, for which GitHub redirects to a storage."""
        match = re.fullmatch(rf"GET (?:{_REPO}/actions/jobs/(\d+)/logs|/storage/(\d+))", call)
        job = (match[1] or match[2]) if match else ""
        if match is None or job not in self.jobs:
            return None
        if match[2]:
            self.storage_headers.append(headers)
        elif self.kind == "github":
            root = self.url.partition("://")[2]
            return 302, {"Location": f"http://{root}/api/v3/storage/{job}"}, b""
        return 200, {"Content-Type": "text/plain"}, self.jobs[job][1].encode()

    def _page(
        self,
        items: list[Data],
        path: str,
        query: Mapping[str, list[str]],
        response_headers: dict[str, str],
    ) -> list[Data]:
        if self.kind == "gitea" and path.endswith("/comments"):  # all at once
            response_headers["X-Total-Count"] = str(len(items))
            return items
        page = int(query.get("page", ["1"])[0])
        size = int(query.get("limit" if self.kind == "gitea" else "per_page", ["30"])[0])
        if self.kind == "gitea":
            response_headers["X-Total-Count"] = str(len(items))
        if self.kind == "github" and page * size < len(items):
            response_headers["Link"] = f'<{self.url}{path}?page={page + 1}>; rel="next"'
        return items[(page - 1) * size : page * size]

    def do(self, call: str, query: Mapping[str, list[str]], body: Any, authorization: str) -> Any:
        if status := self.failing(call):
            raise Wrong(status, "scripted")
        user = {f"Bearer {token}": login for login, token in TOKENS.items()}.get(authorization)
        if user is None:
            raise Wrong(401, "Bad credentials")
        method, _, path = call.partition(" ")
        for expected_method, pattern, act in self._routes():
            if method == expected_method and (match := re.fullmatch(pattern, path)):
                return act(user, query, body, *match.groups())
        raise Wrong(404, "Not Found")

    def _routes(self) -> list[tuple[str, str, Callable[..., Any]]]:
        return [
            ("GET", "/user", lambda user, *_: {"login": user}),
            ("GET", _REPO, lambda *_: {"default_branch": "main", "full_name": REPOSITORY}),
            ("GET", f"{_REPO}/issues", self._list_issues),
            ("POST", f"{_REPO}/issues", self._new_issue),
            ("GET", rf"{_REPO}/(issues|pulls)/(\d+)", self._item),
            ("POST", rf"{_REPO}/statuses/([0-9a-f]{{40}})", self._set_status),
            ("GET", rf"{_REPO}/commits/([0-9a-f]{{40}})/status", self._combined_status),
            ("GET", rf"{_REPO}/commits/([0-9a-f]{{40}})/check-runs", self._check_runs),
            ("POST", rf"{_REPO}/check-runs", self._new_check_run),
            ("GET", rf"{_REPO}/actions/jobs/(\d+)", self._job),
            ("PATCH", rf"{_REPO}/(issues|pulls)/(\d+)", self._change),
            ("POST", rf"{_REPO}/issues/(\d+)/labels", self._label),
            (
                "GET",
                rf"{_REPO}/issues/(\d+)/comments",
                lambda w, q, b, number: self.comments[int(number)],
            ),
            ("POST", rf"{_REPO}/issues/(\d+)/comments", self._comment),
            ("GET", rf"{_REPO}/collaborators/([\w-]+)/permission", self._permission),
            ("GET", f"{_REPO}/pulls", self._list_pulls),
            ("POST", f"{_REPO}/pulls", self._new_pull),
            (
                "GET",
                rf"{_REPO}/pulls/(\d+)/reviews",
                lambda w, q, b, number: self.reviews[int(number)],
            ),
            ("POST", rf"{_REPO}/pulls/(\d+)/reviews", self._review),
            ("GET", rf"{_REPO}/pulls/(\d+)/reviews/(\d+)/comments", self._remarks),
        ]

    def _list_issues(self, user: str, query: Mapping[str, list[str]], body: Any) -> list[Data]:
        label = query.get("labels", [""])[0]
        issues = [
            item
            for item in self.issues.values()
            if not label or label in {entry["name"] for entry in item["labels"]}
        ]
        if self.kind == "github" and not label:  # there, pull requests are issues too
            issues += [
                {**item, "pull_request": {"url": ""}, "labels": []} for item in self.pulls.values()
            ]
        return [item for item in issues if item["state"] == query.get("state", ["open"])[0]]

    def _number(self) -> int:
        number = len(self.issues) + len(self.pulls) + 1
        self.comments[number] = []
        return number

    def _new_issue(self, user: str, query: Any, body: Data) -> Data:
        number = self._number()
        self.issues[number] = {
            "number": number,
            "state": "open",
            "title": body["title"],
            "body": body.get("body") or None,
            "user": {"login": user},
            "labels": [],
        }
        return self.issues[number]

    def _item(self, user: str, query: Any, body: Any, kind: str, number: str) -> Data:
        if kind == "issues":
            return self.issues[int(number)]
        pull = self.pulls[int(number)]
        return self._with_commits(pull)

    def _with_commits(self, pull: Data) -> Data:
        """Return a pull request with the current commits of its branches."""
        ends = {end: {**pull[end], "sha": self.sha(pull[end]["ref"])} for end in ("head", "base")}
        return {**pull, **ends}

    def _set_status(self, user: str, query: Any, body: Data, sha: str) -> Data:
        self._check_writer(user)
        state = "status" if self.kind == "gitea" else "state"
        moment = body.get("updated_at") or datetime.now(UTC).isoformat()
        fields = {key: value for key, value in body.items() if key != "state"}
        stored = {**fields, state: body["state"], "updated_at": moment}
        self.statuses.setdefault(sha, []).append(stored)
        return stored

    def _combined_status(self, user: str, query: Any, body: Any, sha: str) -> Data:
        newest = {status["context"]: status for status in self.statuses.get(sha, ())}
        return {"sha": sha, "statuses": list(newest.values())}

    def _check_runs(self, user: str, query: Any, body: Any, sha: str) -> Data:
        if self.kind != "github":
            raise Wrong(404, "Not Found")
        return {"check_runs": self.check_runs.get(sha, [])}

    def _new_check_run(self, user: str, query: Any, body: Data) -> Data:
        if self.kind != "github" or user not in self.apps:
            raise Wrong(403, "You must authenticate via a GitHub App.")
        self.check_runs.setdefault(body["head_sha"], []).append(body)
        return body

    def _job(self, user: str, query: Any, body: Any, job: str) -> Data:
        if job not in self.jobs:
            raise Wrong(404, "Not Found")
        return {"id": int(job), "head_sha": self.jobs[job][0]}

    def _change(self, user: str, query: Any, body: Data, kind: str, number: str) -> Data:
        item = (self.pulls if kind == "pulls" else self.issues)[int(number)]
        if user != item["user"]["login"]:
            self._check_writer(user)
        item.update(body)
        return item

    def _check_writer(self, user: str) -> None:
        if self.permissions[user] not in {"write", "admin"}:
            raise Wrong(403, "Must have write access")

    def _label(self, user: str, query: Any, body: Data, number: str) -> list[Data]:
        self._check_writer(user)
        self.issues[int(number)]["labels"] += [{"name": name} for name in body["labels"]]
        return list(self.issues[int(number)]["labels"])

    def _comment(self, user: str, query: Any, body: Data, number: str) -> Data:
        comment = {"id": next(self._ids), "body": body["body"], "user": {"login": user}}
        self.comments[int(number)].append(comment)
        return comment

    def _permission(self, user: str, query: Any, body: Any, login: str) -> Data:
        if login not in self.permissions:
            raise Wrong(404, "Not Found")
        if self.kind == "gitea" and user != login and self.permissions[user] != "admin":
            raise Wrong(403, "Only admins can query all permissions")
        return {"permission": self.permissions[login], "user": {"login": login}}

    def sha(self, branch: str) -> str:
        """Return the commit of a branch, or ''."""
        refs = dict(
            line.split("\t")[::-1]
            for line in self.repo.git("ls-remote", str(self.repo.path)).splitlines()
        )
        return refs.get(f"refs/heads/{branch}", "")

    def _list_pulls(self, user: str, query: Mapping[str, list[str]], body: Any) -> list[Data]:
        pulls = list(self.pulls.values())[::-1]
        if self.kind == "github" and (head := query.get("head", [""])[0]):
            pulls = [pull for pull in pulls if pull["head"]["label"] == head]
        if self.kind == "gitea" and (poster := query.get("poster", [""])[0]):
            pulls = [pull for pull in pulls if pull["user"]["login"] == poster]
        return [self._with_commits(pull) for pull in pulls]

    def _new_pull(self, user: str, query: Any, body: Data) -> Data:
        owner, _, branch = body["head"].rpartition(":")
        if not owner and not self.sha(branch):
            raise Wrong(422 if self.kind == "github" else 404, "head invalid")
        label = f"{owner or 'acme'}:{branch}"
        if any(
            pull["state"] == "open" and pull["head"]["label"] == label
            for pull in self.pulls.values()
        ):
            raise Wrong(422 if self.kind == "github" else 409, "a pull request exists")
        source = f"{owner or 'acme'}/app"
        number = self._number()
        self.reviews[number] = []
        ref = (
            f"merge-requests/{gitlab_api.FIRST + number}"
            if self.kind == "gitlab"
            else f"pull/{number}"
        )
        self.repo.git("update-ref", f"refs/{ref}/head", self.sha(branch) or "HEAD")
        self.pulls[number] = {
            "number": number,
            "state": "open",
            "title": body["title"],
            "body": body["body"],
            "user": {"login": user},
            "head": {"ref": branch, "label": label, "repo": {"full_name": source}},
            "base": {"ref": body["base"]},
        }
        return self._list_pulls(user, {}, None)[0]

    def _review(self, user: str, query: Any, body: Data, number: str) -> Data:
        if user == self.pulls[int(number)]["user"]["login"]:
            raise Wrong(422, "you cannot request changes to your own pull request")
        names = (
            {"REQUEST_CHANGES": "CHANGES_REQUESTED", "COMMENT": "COMMENTED"}
            if self.kind != "gitea"
            else {}
        )
        remarks = [
            {"path": item["path"], "body": item["body"], "diff_hunk": "@@"}
            for item in body.get("comments", ())
        ]
        state = names.get(body["event"], body["event"])
        review = {
            "id": next(self._ids),
            "state": state,
            "body": body["body"],
            "user": {"login": user},
            "remarks": remarks,
        }
        self.reviews[int(number)].append(review)
        return review

    def _remarks(self, user: str, query: Any, body: Any, number: str, review: str) -> list[Data]:
        stored_review = next(
            item for item in self.reviews[int(number)] if item["id"] == int(review)
        )
        return list(stored_review["remarks"])


@dataclass(frozen=True, slots=True)
class Person:
    """A user of a forge's API: `ada("POST", "/issues", title="…")` is about acme/app."""

    api: str
    token: str

    def __call__(self, method: str, path: str, **body: Any) -> Any:
        """Return the forge's response. Raises `urllib.error.HTTPError`."""
        return self.ask(method, f"/repos/{REPOSITORY}{path}", **body)

    def ask(self, method: str, path: str, **body: Any) -> Any:
        """Return the forge's response to a request outside of acme/app."""
        request = urllib.request.Request(  # noqa: S310 - loopback
            f"{self.api}{path}",
            json.dumps(body).encode() if body else None,
            {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - as above
            return json.loads(answer.read() or b"null")

    def open_issue(self, title: str, body: str = "", *, label: str = "") -> int:
        """Open an issue, and label it."""
        number: int = self("POST", "/issues", title=title, body=body)["number"]
        if label:
            self("POST", f"/issues/{number}/labels", labels=[label])
        return number

    def review(
        self, number: int, body: str, *remarks: tuple[str, str], event: str = "REQUEST_CHANGES"
    ) -> None:
        """Review a pull request, with remarks (path, text) on the first line of a file."""
        lines = [
            {"path": path, "body": text, "line": 1, "new_position": 1} for path, text in remarks
        ]
        self("POST", f"/pulls/{number}/reviews", body=body, event=event, comments=lines)

    def comments(self, number: int) -> list[str]:
        """Return the comments of an issue or pull request."""
        return [item["body"] for item in self("GET", f"/issues/{number}/comments")]

    def set_status(self, sha: str, state: str, description: str = "", **fields: str) -> None:
        """Set the status of a commit in the context ci/tests."""
        self(
            "POST",
            f"/statuses/{sha}",
            **{"state": state, "context": "ci/tests", "description": description, **fields},
        )

    def pulls(self) -> list[Data]:
        """Return all pull requests, the newest first."""
        return list(self("GET", "/pulls?state=all"))


@dataclass(frozen=True, slots=True)
class Place:
    """A real or fake forge: its address, and the location of its repository."""

    kind: str
    url: str
    api: str
    repo: Repo
    tokens: Mapping[str, str]

    def person(self, login: str) -> Person:
        """Return a user."""
        return Person(self.api, self.tokens[login])


@contextmanager
def fake_forge(folder: Path, kind: str) -> Iterator[FakeForge]:
    """Serve a forge with the sample as acme/app until the context ends."""
    sample = make_sample(folder / "sample")
    served = folder / "served" / "acme"
    served.mkdir(parents=True)
    sample.git("clone", "--quiet", "--bare", str(sample.path), str(served / "app.git"))
    bare = Repo(served / "app.git")
    bare.git("config", "http.receivepack", "true")
    forge = FakeForge(kind, served.parent, bare)
    pair = base64.b64encode(f"x-access-token:{TOKENS['moothall-bot']}".encode()).decode()
    with git_server(served.parent, f"Basic {pair}", forge.answer) as server:
        forge.url = server.url
        yield forge


def place_of(forge: FakeForge) -> Place:
    """Return the forge as tests use it."""
    return Place(
        forge.kind,
        forge.url,
        f"{forge.url}/api/{'v1' if forge.kind == 'gitea' else 'v3'}",
        forge.repo,
        TOKENS,
    )
