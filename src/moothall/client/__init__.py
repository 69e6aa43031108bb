"""Moothall from Python: a client for a server, or for a server in this process.

`Client` blocks; `AsyncClient` has the same methods as coroutines. Both raise the errors of
`moothall.errors`. docs/client.md has examples.
"""

from moothall.client.asynchronous import AsyncClient
from moothall.client.blocking import Client
from moothall.client.types import (
    ConfigurationOptions,
    EvaluationOptions,
    Story,
    StoryMove,
    StorySummary,
    TaskOptions,
    Update,
)
from moothall.domain.event import EventType
from moothall.domain.evidence import EvidenceLevel
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.evaluate.report import Report as EvaluationReport

__all__ = [
    "AsyncClient",
    "Client",
    "ConfigurationOptions",
    "DeliberationStatus",
    "EvaluationOptions",
    "EvaluationReport",
    "EventType",
    "EvidenceLevel",
    "Outcome",
    "Result",
    "Story",
    "StoryMove",
    "StorySummary",
    "TaskOptions",
    "Update",
]
