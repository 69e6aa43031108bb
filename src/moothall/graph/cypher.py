"""The Cypher of the questions, in a subset that Neo4j 5 and the embedded store both support."""

from __future__ import annotations

from collections.abc import Mapping


def _map_of(variable: str, names: str, **expressions: str) -> str:
    """Return a map of a node's properties, after other keys with their expressions."""
    entries = [f"{name}: {variable}.{name}" for name in names.split()]
    further_entries = [f"{key}: {expression}" for key, expression in expressions.items()]
    return "{" + ", ".join([*further_entries, *entries]) + "}"


def _collect(
    start: str, pattern: str, variable: str, expression: str, *, order: str, column: str
) -> str:
    """Return a sub-query that collects nodes around `start` in order."""
    return (
        f"CALL {{ WITH {start} MATCH {pattern} WITH DISTINCT {variable} ORDER BY {order} RETURN "
        f"collect({expression}) AS {column} }}\n"
    )


def _or_null(variable: str, expression: str) -> str:
    return f"CASE WHEN {variable} IS NULL THEN null ELSE {expression} END"


_DELIBERATION = _map_of(
    "d",
    "description role protocol rounds seats requirements rubric base_sha principal asked_at "
    "started_at deadline status final_state winner proven evidence_level branch commit_sha "
    "error_message decided_at duration_ms prompt_tokens cached_tokens completion_tokens calls "
    "cost_usd cancelled_at cancel_reason guides choice",
    task_id="d.key",
)
_TASK = _map_of("t", "role", task_id="t.key", description="coalesce(t.description, d.description)")
_STORY = _map_of("st", "headline brief state", story_id="st.key")
_REPOSITORY = _map_of("repo", "url", id="repo.key")
_SEAT = _map_of(
    "s",
    "seat role approach began_at status error_code error_message finished_at prompt_tokens "
    "completion_tokens calls cost_usd",
)
_PROPOSAL = _map_of(
    "p",
    "candidate seat summary diff_sha256 commit_sha revision paths own_tests operations made_at "
    "applies required regressions proven behaviour rank score reasons passed_gates won",
)
_REVIEW = _map_of("r", "reviewer candidate score met unmet comment made_at")
_EVIDENCE = _map_of(
    "e", "candidate check verdict passed failed skipped duration_ms output tests_of made_at"
)
_MODEL = _map_of(
    "m",
    "seat phase prompt_sha256 model temperature seed max_tokens prompt_tokens cached_tokens "
    "completion_tokens cost_usd answer answer_sha256 finish_reason duration_ms made_at",
    call_id="m.key",
)
_TOOL = _map_of(
    "x",
    "tool seat status error duration_ms audit_id arguments_sha256 finished_at",
    request_id="x.key",
)
_DECISION = _map_of("dec", "approver decision comment made_at")

_RELATED_NODES = """
OPTIONAL MATCH (d)-[:WORKS_ON]->(repo:Repository)
OPTIONAL MATCH (t:Task)-[:DELIBERATED_IN]->(d)
OPTIONAL MATCH (st:Story)-[:HAS_TASK]->(t)
"""
_REVIEWS = _collect(
    "p", "(p)<-[:JUDGES]-(r:Review)", "r", _REVIEW, order="r.made_at, r.key", column="reviews"
)
_CHECKS = _collect(
    "p",
    "(p)-[:HAS_EVIDENCE]->(e:Evidence)",
    "e",
    _EVIDENCE,
    order="e.made_at, e.key",
    column="evidence",
)
_DECISIONS = _collect(
    "d",
    "(d)<-[:DECIDES]-(dec:Decision)",
    "dec",
    _DECISION,
    order="dec.made_at, dec.key",
    column="decisions",
)

_DECISIONS_OF_STORY = _collect(
    "d",
    "(d)<-[:DELIBERATED_IN]-(:Task)<-[:HAS_TASK]-(:Story)-[:DECIDED_BY]->(dec:Decision)",
    "dec",
    _DECISION,
    order="dec.made_at, dec.key",
    column="decisions",
)

PROVENANCE = (
    """
MATCH (c:Commit {uid: $commit_sha_uid})<-[:DELIVERED_AS]-(p:Proposal)<-[:PROPOSED]-(s:Seat)<-[:HAS_SEAT]-(d:Deliberation)
WHERE $path = '' OR $path IN p.paths"""
    + _RELATED_NODES
    + _REVIEWS
    + _CHECKS
    + _collect(
        "s",
        "(s)-[:CALLED_MODEL]->(m:ModelCall)",
        "m",
        _MODEL,
        order="m.made_at, m.key",
        column="model_calls",
    )
    + _collect(
        "s",
        "(s)-[:CALLED_TOOL]->(x:ToolCall)",
        "x",
        _TOOL,
        order="x.finished_at, x.key",
        column="tool_calls",
    )
    + _DECISIONS_OF_STORY
    + f"""
RETURN c.key AS commit, {_or_null("repo", _REPOSITORY)} AS repository, {_or_null("st", _STORY)} AS story,
  {_TASK} AS task, {_DELIBERATION} AS deliberation, {_SEAT} AS seat, {_PROPOSAL} AS proposal,
  reviews, evidence, model_calls, tool_calls, decisions
ORDER BY d.decided_at, d.key, p.key
"""
)

DELIBERATION = (
    "MATCH (d:Deliberation {uid: $task_id_uid})"
    + _RELATED_NODES
    + _collect("d", "(d)-[:HAS_SEAT]->(s:Seat)", "s", _SEAT, order="s.key", column="seats")
    + "CALL { WITH d MATCH (d)-[:HAS_SEAT]->(:Seat)-[:PROPOSED]->(p:Proposal)\n"
    + _REVIEWS
    + _CHECKS
    + f"""WITH DISTINCT p, reviews, evidence ORDER BY coalesce(p.rank, 1000000), p.key
RETURN collect({_PROPOSAL[:-1]}, reviews: reviews, evidence: evidence}}) AS proposals }}
"""
    + """CALL { WITH d MATCH (d)-[:HAS_SEAT]->(:Seat)-[:CALLED_MODEL]->(m:ModelCall) RETURN collect(m) AS of_seats }
CALL { WITH d MATCH (d)-[:ASKED_MODEL]->(m:ModelCall) RETURN collect(m) AS of_all }
"""
    + f"""CALL {{ WITH of_seats, of_all UNWIND of_seats + of_all AS m WITH m ORDER BY m.made_at, m.key
RETURN collect({_MODEL}) AS model_calls }}
"""
    + _collect(
        "d",
        "(d)-[:HAS_SEAT]->(:Seat)-[:CALLED_TOOL]->(x:ToolCall)",
        "x",
        _TOOL,
        order="x.finished_at, x.key",
        column="tool_calls",
    )
    + _DECISIONS
    + f"""
RETURN {_DELIBERATION} AS deliberation, {_TASK} AS task, {_or_null("st", _STORY)} AS story,
  {_or_null("repo", _REPOSITORY)} AS repository, seats, proposals, model_calls, tool_calls, decisions
"""
)

TASK_CONTEXT = (
    """
OPTIONAL MATCH (me:Deliberation {uid: $task_id_uid})
WITH CASE WHEN $repository <> '' THEN $repository ELSE coalesce(me.repository, '') END AS repository,
  CASE WHEN $story_id <> '' THEN $story_id ELSE coalesce(me.story, '') END AS story
MATCH (d:Deliberation)
WHERE d.tenant = $tenant AND d.key <> $task_id AND d.status <> ''
  AND ((repository <> '' AND d.repository = repository) OR (story <> '' AND d.story = story)
    OR (repository = '' AND story = '' AND $task_id = ''))
  AND ($role = '' OR d.role = $role)
WITH d ORDER BY d.decided_at DESC, d.key LIMIT $limit
OPTIONAL MATCH (d)-[:WON_BY]->(p:Proposal)
"""
    + _collect(
        "p", "(p)<-[:JUDGES]-(r:Review)", "r", _REVIEW, order="r.made_at, r.key", column="reviews"
    )
    + _collect(
        "p",
        "(p)-[:HAS_EVIDENCE]->(e:Evidence)",
        "e",
        _EVIDENCE,
        order="e.made_at, e.key",
        column="checks",
    )
    + _DECISIONS
    + f"""
RETURN d.key AS task_id, coalesce(d.story, '') AS story_id, d.description AS description, d.role AS role, d.status AS status,
  d.final_state AS final_state, d.proven AS proven, d.decided_at AS decided_at, d.branch AS branch, d.commit_sha AS commit_sha,
  {_or_null("p", _map_of("p", "candidate seat summary paths score reasons"))} AS winner, reviews, checks, decisions
ORDER BY decided_at DESC, task_id
"""
)

STORY = (
    """MATCH (st:Story {uid: $story_id_uid})
CALL { WITH st MATCH (st)-[:HAS_TASK]->(t:Task)
CALL { WITH t MATCH (t)-[:DELIBERATED_IN]->(d:Deliberation) WITH DISTINCT d ORDER BY d.asked_at, d.key
"""
    f"""RETURN collect({_map_of("d", "status final_state winner branch commit_sha decided_at", task_id="d.key")}) AS runs }}
WITH DISTINCT t, runs ORDER BY coalesce(t.place, 1000000), t.key
RETURN collect({_map_of("t", "description role priority", task_id="t.key", deliberations="runs")}) AS tasks }}
"""
    + _collect(
        "st",
        "(st)-[:HAS_COMMENT]->(c:Comment)",
        "c",
        _map_of("c", "comment actor made_at"),
        order="c.made_at, c.key",
        column="comments",
    )
    + _collect(
        "st",
        "(st)-[:DECIDED_BY]->(dec:Decision)",
        "dec",
        _DECISION,
        order="dec.made_at, dec.key",
        column="decisions",
    )
    + f"""
RETURN {_map_of("st", "headline brief criteria repository rigor state told_at moved_at", story_id="st.key")} AS story,
  tasks, comments, decisions
"""
)


def _collect_scope(scope: str, pattern: str, variable: str, expression: str, *, order: str) -> str:
    """Return a sub-query that collects nodes around a story if `scope` is in `$scopes`. Data outside
    of the allowed scopes is not read at all.
    """
    return (
        f"CALL {{ WITH st MATCH {pattern} WHERE '{scope}' IN $scopes WITH DISTINCT {variable} "
        f"ORDER BY {order} LIMIT $limit RETURN collect({expression}) AS {scope} }}\n"
    )


_EXCERPT_CHARS = 300
"""The length of a text that is only compared for similarity."""
_OF_STORY = "(st)-[:HAS_TASK]->(:Task)-[:DELIBERATED_IN]->(d:Deliberation)"
_WINNER = _map_of("p", "summary paths reasons")
_SUMMARY = _map_of(
    "d",
    "description role status final_state proven error_message",
    task_id="d.key",
    winner=_or_null("p", _WINNER),
    reviews="reviews",
)

_FOR_STORY = """
OPTIONAL MATCH (st:Story {uid: $story_id_uid})
OPTIONAL MATCH (me:Deliberation {uid: $task_id_uid})
"""
# A query of its own: without such a deliberation, the embedded store reads all stories.
_FOR_TASK = """
OPTIONAL MATCH (me:Deliberation {uid: $task_id_uid})
OPTIONAL MATCH (st:Story)-[:HAS_TASK]->(:Task)-[:DELIBERATED_IN]->(me)
"""
_CONTEXT = (
    """WITH st, me ORDER BY st.uid LIMIT 1
WITH st, coalesce(st.key, '') AS here, left(coalesce(me.description, trim(coalesce(st.headline, '') + ' ' + coalesce(st.brief, ''))), 2000) AS about,
  CASE WHEN $repository <> '' THEN $repository ELSE coalesce(me.repository, st.repository, '') END AS repository
"""
    + _collect_scope(
        "decisions",
        "(st)-[:DECIDED_BY]->(dec:Decision)",
        "dec",
        _map_of(
            "dec",
            "approver decision comment made_at",
            about="[(dec)-[:DECIDES]->(what:Deliberation) | what.key]",
        ),
        order="dec.made_at DESC, dec.key",
    )
    + _collect_scope(
        "comments",
        "(st)-[:HAS_COMMENT]->(c:Comment)",
        "c",
        _map_of("c", "comment actor made_at"),
        order="c.made_at DESC, c.key",
    )
    + _collect_scope(
        "plan",
        "(st)-[:PLANNED_AS]->(pl:Plan)",
        "pl",
        _map_of("pl", "status derived_at finished_at", plan_id="pl.key"),
        order="pl.derived_at DESC, pl.key",
    )
    + _collect_scope(
        "tasks",
        "(st)-[:HAS_TASK]->(t:Task)",
        "t",
        _map_of(
            "t",
            "role description place",
            task_id="t.key",
            after="[(t)-[:DEPENDS_ON]->(b:Task) | b.key]",
            ends="[(t)-[:DELIBERATED_IN]->(r:Deliberation) | r.final_state]",
        ),
        order="t.planned_at DESC, t.place, t.key",
    )
    + _collect_scope(
        "milestones",
        "(st)-[:MOVED_BY]->(m:Transition)",
        "m",
        _map_of("m", "from_state to_state event actor made_at"),
        order="m.made_at DESC, m.key",
    )
    + """CALL { WITH st MATCH (st)-[:HAS_NOTE]->(n:Note) WHERE n.kind IN $noted AND n.gone = false
WITH DISTINCT n ORDER BY n.version DESC, n.key LIMIT $limit
"""
    f"""RETURN collect({_map_of("n", "kind entity words reason actor role task")}) AS notes }}
"""
    + f"""CALL {{ WITH st MATCH {_OF_STORY} WHERE 'summaries' IN $scopes AND d.status <> '' AND d.key <> $task_id
WITH DISTINCT d ORDER BY d.decided_at DESC, d.key LIMIT $limit
OPTIONAL MATCH (d)-[:WON_BY]->(p:Proposal)
CALL {{ WITH p MATCH (p)<-[:JUDGES]-(r:Review) WITH r ORDER BY r.made_at, r.key LIMIT 3 RETURN collect(r.comment) AS reviews }}
WITH d, p, reviews ORDER BY d.decided_at DESC, d.key
RETURN collect({_SUMMARY}) AS summaries }}
RETURN CASE WHEN 'story' IN $scopes AND st IS NOT NULL THEN {_map_of("st", "headline state rigor", story_id="st.key")} ELSE null END AS story,
  CASE WHEN 'brief' IN $scopes AND st IS NOT NULL THEN {_map_of("st", "brief criteria")} ELSE null END AS brief,
  decisions, comments, summaries, plan, tasks, milestones, notes, about, repository, here AS of_story
"""
)


def context(story_id: str) -> str:
    """Return the query for a context. If `story_id` is empty, the story is that of the
    deliberation.
    """
    return (_FOR_STORY if story_id else _FOR_TASK) + _CONTEXT


def similar(limit: int) -> str:
    """Return the query for similar deliberations. `limit` is validated and part of the text: with a
    parameter, the embedded store would sort all rows first.
    """
    return f"""
MATCH (d:Deliberation)
WHERE d.repository = $repository AND $allowed AND d.tenant = $tenant AND d.decided_at > '' AND d.winner <> ''
  AND d.key <> $task_id AND ($story_id = '' OR d.story <> $story_id)
WITH d ORDER BY d.repository DESC, d.decided_at DESC LIMIT {limit}
OPTIONAL MATCH (d)-[:WON_BY]->(p:Proposal)
RETURN d.key AS task_id, d.role AS role, left(d.description, {_EXCERPT_CHARS}) AS description, left(p.summary, {_EXCERPT_CHARS}) AS summary,
  p.paths AS paths
ORDER BY d.decided_at DESC, task_id
"""


_ENTRIES: Mapping[str, tuple[str, str, str, str, str]] = {
    # For each kind: pattern, time, task_id, seat and text.
    "deliberation.requested": ("(d:Deliberation)", "d.asked_at", "d.key", "''", "d.description"),
    "deliberation.cancelled": (
        "(d:Deliberation)",
        "d.cancelled_at",
        "d.key",
        "''",
        "d.cancel_reason",
    ),
    "deliberation.decided": (
        "(d:Deliberation)",
        "d.decided_at",
        "d.key",
        "d.winner",
        "d.final_state + ': ' + d.status",
    ),
    "seat.proposed": (
        "(d:Deliberation)-[:HAS_SEAT]->(:Seat)-[:PROPOSED]->(p:Proposal)",
        "p.made_at",
        "d.key",
        "p.seat",
        "p.summary",
    ),
    "seat.reviewed": (
        "(d:Deliberation)-[:HAS_SEAT]->(:Seat)-[:GAVE]->(r:Review)",
        "r.made_at",
        "d.key",
        "r.reviewer",
        "r.candidate + ': ' + r.comment",
    ),
    "seat.failed": (
        "(d:Deliberation)-[:HAS_SEAT]->(s:Seat)",
        "s.failed_at",
        "d.key",
        "s.seat",
        "s.failure_code + ': ' + s.failure",
    ),
    "story.changed": ("(st:Story)", "st.told_at", "''", "''", "st.headline"),
    "story.transitioned": (
        "(st:Story)-[:MOVED_BY]->(m:Transition)",
        "m.made_at",
        "''",
        "''",
        "m.from_state + ' to ' + m.to_state",
    ),
    "story.commented": (
        "(st:Story)-[:HAS_COMMENT]->(c:Comment)",
        "c.made_at",
        "''",
        "''",
        "c.comment",
    ),
    "decision.made": (
        "(st:Story)-[:DECIDED_BY]->(x:Decision)",
        "x.made_at",
        "''",
        "''",
        "x.approver + ': ' + x.decision + ' ' + x.comment",
    ),
}


KINDS = tuple(_ENTRIES)
"""The kinds of entries in a timeline."""


def _entry(kind: str) -> str:
    pattern, time, task_id, seat, text = _ENTRIES[kind]
    of_story = pattern.startswith("(st")
    condition = (
        f"(st.uid = $story_id_uid) AND {time} <> '' AND $story_id <> ''"
        if of_story
        else "(d.uid = $task_id_uid OR (d.tenant = $tenant AND $story_id <> '' AND "
        f"d.story = $story_id)) AND {time} <> ''"
    )
    return (
        f"MATCH {pattern} WHERE {condition} RETURN {time} AS time, '{kind}' AS kind, {task_id} AS "
        f"task_id, coalesce({seat}, '') AS seat, coalesce({text}, '') AS text"
    )


TIMELINE = (
    "CALL {\n"
    + "\nUNION ALL\n".join(_entry(kind) for kind in _ENTRIES)
    + """
}
WITH time, kind, task_id, seat, text WHERE NOT kind IN $hidden
WITH time, kind, task_id, seat, text ORDER BY time DESC, kind DESC, task_id DESC, seat DESC LIMIT $limit
RETURN time, kind, task_id, seat, text ORDER BY time, kind, task_id, seat
"""
)


def neighbours(label: str, depth: int) -> str:
    """Return the query for a node's neighbours. The label and the depth must be validated before,
    since they are part of the text.
    """
    return f"""
MATCH (n:{label} {{uid: $id_uid}})
CALL {{ WITH n MATCH (n)-[*1..{depth}]-(other) WHERE other.tenant = $tenant AND other.uid <> n.uid
  WITH DISTINCT other, labels(other)[0] AS of ORDER BY of, other.uid LIMIT $limit RETURN collect(other) AS around }}
CALL {{ WITH n, around UNWIND around + [n] AS a MATCH (a)-[r]->(b) WHERE b.uid = n.uid OR b IN around
  WITH DISTINCT a, r, b ORDER BY type(r), a.uid, b.uid
  RETURN collect({{type: type(r), from: {{label: labels(a)[0], id: a.key}}, to: {{label: labels(b)[0], id: b.key}}}})
    AS relationships }}
RETURN {{label: labels(n)[0], id: n.key, properties: properties(n)}} AS node,
  [m IN around | {{label: labels(m)[0], id: m.key, properties: properties(m)}}] AS neighbours, relationships
"""
