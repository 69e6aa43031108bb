"""The path from a line to its approver, and navigation of the graph: a real repository, and a fake
graph with planned answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from moothall import config
from moothall.api.http.server import http_server
from moothall.api.identity import BearerTokens
from moothall.api.web.charts import Neighbour, draw_around
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.ids import LOCAL
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.errors import GraphUnavailable
from moothall.repositories.service import RepositoryService
from moothall.telemetry.tracing import write
from support.browsing import DRAFT, HOSTILE, SHOWN, Browser, serving_page
from support.callers import OTHER, TOKENS, api_dependencies, with_parts
from support.deliberation_service import MemoryDeliberations
from support.graph import MemoryGraph
from support.repos import make_repo
from support.story import full

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

ROW: dict[str, Any] = {
    "story": {"story_id": "story-1", "headline": HOSTILE, "state": "done"},
    "task": {"task_id": "task-1", "description": "Add hello_world", "role": "dev"},
    "deliberation": {"task_id": "task-1", "proven": False, "evidence_level": "self_tested"},
    "seat": {"seat": "agent-dev-001", "approach": HOSTILE},
    "reviews": [{"reviewer": "agent-dev-002", "score": 0.5, "comment": HOSTILE}],
    "evidence": [{"check": "tests", "verdict": "passed"}],
    "decisions": [
        {"approver": "pat", "decision": "approved", "comment": HOSTILE},
        {"approver": "quinn", "decision": "changes", "comment": ""},
    ],
}


@dataclass(frozen=True, slots=True)
class App:
    """A signed-in browser, a fake graph, and a repository `project` with two commits."""

    browser: Browser
    graph: MemoryGraph
    head: str

    async def read_page(self, at: str, **query: str) -> str:
        response = await self.browser.get(f"{at}?{urlencode(query)}")
        assert response.status == 200, response.text
        assert response.text.count("<script") == response.text.count("<script src=")
        return response.text


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    repo = make_repo(
        tmp_path / "project",
        {"src/a.py": "one\n" * 900, f"{HOSTILE.replace('/', '')}.txt": "x\n", "raw.bin": "a\0b"},
    )
    head = repo.commit({"src/a.py": "one\n" * 899 + f"{HOSTILE}\n"})
    data = tmp_path / "data"

    async def prepare(*_: Any) -> Any:
        raise NotImplementedError

    repositories = RepositoryService(data, config.WorkspaceSettings(), prepare)
    await repositories.register(str(repo.path), id="project")
    graph = MemoryGraph()
    dependencies = replace(
        api_dependencies(MemoryDeliberations(), graph=graph), repositories=repositories
    )
    async with serving_page(dependencies) as browser:
        await browser.sign_in()
        yield App(browser, graph, head)


async def test_the_origin_of_a_line_is_found_from_repository_to_approver(app: App) -> None:
    assert "<option>project</option>" in await app.read_page("/origins")
    files = await app.read_page("/origins", repository="project")
    assert f"ref={app.head}&amp;path=src/a.py" in files
    text = await app.read_page("/origins", repository="project", ref=app.head, path="src/a.py")
    assert text.count('class="line') == 400
    assert "The file has more lines" in text
    app.graph.announce("provenance", ROW)
    page = await app.read_page("/origins", repository="project", path="src/a.py", line="900")
    assert app.graph.requested[-1] == (
        "provenance",
        {"tenant": "local", "commit_sha": app.head, "path": "src/a.py"},
    )
    assert page.count(SHOWN) == 6, "the line twice, headline, approach, review and decision"
    for words in (
        "Line 900 of src/a.py",
        'href="/stories/story-1"',
        'href="/councils/task-1"',
        "self-tested</span>",
        "<strong>pat</strong> approved",
        "<strong>quinn</strong> requested changes</p>",
    ):
        assert words in page
    assert 'aria-current="true"' in page
    assert "The file has more lines" not in page


async def test_unknown_ids_and_an_unreachable_graph_are_reported(
    app: App,
) -> None:
    page = await app.read_page("/origins", repository="project", path="src/a.py", line="900")
    assert "No council of this server created it" in page

    async def down(_question: str, **_parameters: Any) -> Any:
        raise GraphUnavailable("it is away")

    dependencies = with_parts(app.browser.dependencies, query=down)
    async with http_server(
        config.WebSettings(port=0),
        dependencies,
        BearerTokens(TOKENS),
        configured=True,
    ) as served:
        browser = Browser(app.browser.http, f"http://127.0.0.1:{served.port}", dependencies)
        await browser.sign_in()
        response = await browser.get("/origins?repository=project&path=src/a.py&line=900")
        assert (response.status, "cannot be queried now: it is away" in response.text) == (
            200,
            True,
        )
        assert (await browser.get("/graph?label=Story&id=story-1")).status == 503


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"repository": "nothing"}, 404),
        ({"repository": "project", "path": "nothing.py"}, 404),
        ({"repository": "project", "path": "raw.bin"}, 400),
        ({"repository": "project", "path": "src/a.py", "line": "901"}, 404),
        ({"repository": "project", "path": "src/a.py", "line": "0"}, 400),
        ({"repository": "project", "path": "src/a.py", "line": "9" * 5_000}, 400),
        ({"repository": "project", "path": "../../etc/passwd"}, 404),
        ({"repository": "project", "ref": "--upload-pack=x"}, 400),
        ({"repository": "/etc"}, 400),
    ],
)
async def test_unknown_origins_are_refused(app: App, query: dict[str, str], status: int) -> None:
    response = await app.browser.get(f"/origins?{urlencode(query)}")
    assert response.status == status, response.text
    assert "Traceback" not in response.text


async def test_another_tenant_sees_no_repository_and_no_node(app: App) -> None:
    app.graph.announce(
        "neighbours",
        {
            "node": {"label": "Story", "id": "s", "properties": {}},
            "neighbours": [],
            "relationships": [],
        },
    )
    await app.browser.sign_in(OTHER)
    assert "No repository is registered" in await app.read_page("/origins")
    assert (await app.browser.get("/origins?repository=project")).status == 404
    assert (await app.browser.get("/graph?label=Story&id=s")).status == 404
    assert app.graph.requested[-1][1]["tenant"] == TOKENS[OTHER].tenant


async def test_the_graph_is_navigated_from_a_story_to_its_neighbours(app: App) -> None:
    assert "There are no stories yet." in await app.read_page("/graph")
    card = await app.browser.dependencies.stories.board.create(
        replace(DRAFT, title=HOSTILE), LOCAL, key="1"
    )
    begin = await app.read_page("/graph")
    assert f"/graph?label=Story&amp;id={card.story.id}" in begin
    story, task, word = (
        {"label": label, "id": name}
        for label, name in (("Story", "s"), ("Task", "t/1"), ("Comment", "c"))
    )
    app.graph.announce(
        "neighbours",
        {
            "node": {
                **story,
                "properties": {"headline": HOSTILE, "criteria": ["a", HOSTILE], "brief": ""},
            },
            "neighbours": [
                {**task, "properties": {"description": f"{HOSTILE}\n\nIt is part of a story."}},
                {**word, "properties": {}},
            ],
            "relationships": [
                {"type": "HAS_TASK", "from": story, "to": task},
                {"type": "SAID_OF", "from": word, "to": story},
                {"type": "AWAY", "from": word, "to": task},
            ],
        },
    )
    page = await app.read_page("/graph", label="Story", id="s")
    assert "has task <a" in page
    assert "</a> said of this" in page
    assert ">Task <tspan>has task</tspan></text>" in page
    assert ">Comment <tspan>said of →</tspan></text>" in page
    assert "AWAY" not in page.upper(), "it belongs to another tenant"
    assert page.count("<rect") == 3
    assert page.count("/graph?label=Task&amp;id=t/1") == 3, "in the drawing, as text, and as a link"
    assert "It is part of" not in page, "only the first words of a description"
    assert "style=" not in page
    assert SHOWN in page
    for kind, tasks, comments in (("Task", 2, 0), ("Comment", 0, 2)):
        filtered = await app.read_page("/graph", label="Story", id="s", kind=kind)
        neighbours = filtered.partition("<h2>Neighbours</h2>")[2]
        assert neighbours.count("label=Task&amp;id=t/1") == tasks, "its link, and its neighbours"
        assert neighbours.count("label=Comment&amp;id=c") == comments
        assert "All (2)" in filtered
    assert "no such neighbours" in await app.read_page("/graph", label="Story", id="s", kind="Plan")


async def test_a_council_without_a_text_has_the_title_of_its_task(app: App) -> None:
    story_node = {"label": "Story", "id": "s"}
    task = {"label": "Task", "id": "task-1"}
    app.graph.announce(
        "neighbours",
        {
            "node": {**story_node, "properties": {}},
            "neighbours": [{**task, "properties": {}}],
            "relationships": [{"type": "HAS_TASK", "from": story_node, "to": task}],
        },
    )
    assert ">Task task-1</a>" in await app.read_page("/graph", label="Story", id="s")
    story = full("task-1")
    outcome = Outcome("task-1", DeliberationStatus.COMPLETED)
    bus = app.browser.dependencies.stories.board._bus
    for event in (*story.events, write(EventType.DELIBERATION_DECIDED, "task-1", dump(outcome))):
        await bus.publish(event)
    title = "Add hello_world() function to src/utils.py"
    assert f">Task {title}</a>" in await app.read_page("/graph", label="Story", id="s")


async def test_forms_offer_the_repositories_of_the_tenant(app: App) -> None:
    for path in ("/stories/new", "/ask"):
        assert '<option value="project">' in await app.read_page(path)
    await app.browser.sign_in(OTHER)
    for path in ("/stories/new", "/ask"):
        assert '<option value="project">' not in await app.read_page(path)


def test_excess_neighbours_are_not_drawn_and_the_drawing_stays_in_bounds() -> None:
    neighbours = [
        Neighbour("Task", str(number), "", "HAS", is_outgoing)
        for is_outgoing, count in ((True, 3), (False, 40))
        for number in range(count)
    ]
    drawn = draw_around(neighbours)
    assert len(drawn.around) == len(drawn.arrows) == 15
    assert all(
        x >= 0 and x + drawn.node <= drawn.width and y >= 0 and y + 52 <= drawn.height
        for x, y, _ in drawn.around
    )
    assert len({(x, y) for x, y, _ in drawn.around}) == 15
    assert draw_around([]).around == ()
