"""The topics of messages. Only the bus's registry maps them to subjects."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from moothall.domain.ids import TaskKey


class Channel(StrEnum):
    """A kind of messages; each message is about one thing, named by an id."""

    STORIES = "stories"
    """Events of stories."""
    RESULTS = "results"
    """Events of deliberations except their end; by task."""
    RESPONSES = "responses"
    """The end of a deliberation, or its cancellation; by task."""
    WORDS = "words"
    """Steering messages to a running deliberation, and pauses; by task."""
    PROGRESS = "progress"
    """The progress of agents."""
    TOOLS = "tools"
    """Tool calls and workflows, by workspace."""
    AUDIT = "audit"
    """Records of tool calls, and alerts; by tenant."""
    COUNCILS = "councils"
    """The councils of a tenant."""
    WORK = "work"
    """Queued deliberations, by role."""
    CALLS = "calls"
    """Queued tool calls, by workspace."""
    CANCEL = "cancel"
    """Signal: stop a deliberation; by task."""
    STEER = "steer"
    """Signal: a steering message, pause or resumption of a deliberation; by task."""
    GROWING = "growing"
    """Signal: what a seat is writing; by task."""
    TAKEN = "taken"
    """Signal: a host has taken over work that was delivered before; by task."""
    LINK = "link"
    """Signal: bytes between a host and the link of a workspace's pod, by the pod and the
    receiver.
    """
    FIGURES = "figures"
    """Signal: the metrics of a process."""
    HOSTS = "hosts"
    """Requests: the state of each host; by the fleet."""
    GRAPH = "graph"
    """Requests: queries of the graph, by its writer."""
    REPOSITORIES = "repositories"
    """Requests: repository data for hosts without a shared disk; by the host that is asked."""

    def of(self, about: str) -> Topic:
        """Return the topic of one thing."""
        return Topic(self, about)

    @property
    def all(self) -> Topic:
        """The topic of everything in this channel."""
        return Topic(self, None)


@dataclass(frozen=True, slots=True)
class Topic:
    """A thing of a channel by its id; None for all of them."""

    channel: Channel
    about: str | None

    def covers(self, other: Topic) -> bool:
        """Return whether every message of `other` is also one of this topic."""
        return self.channel is other.channel and self.about in {None, other.about}


REPOSITORY_SERVICE = Channel.REPOSITORIES.of("house")
"""The topic of requests to the process that has the repositories."""


def deliberation_topics(task_key: TaskKey) -> tuple[Topic, ...]:
    """Return the topics with the events of one deliberation."""
    return (
        Channel.RESULTS.of(task_key),
        Channel.RESPONSES.of(task_key),
        Channel.PROGRESS.of(task_key),
        Channel.WORDS.of(task_key),
    )
