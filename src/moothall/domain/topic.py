"""What messages are about, in words of ours. Which subject of a bus carries a topic is said in that
bus's registry alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Channel(StrEnum):
    """A kind of messages; each is about one thing, by whose id it is found again."""

    STORIES = "stories"
    """What happens to a story."""
    RESULTS = "results"
    """What happens in a deliberation, but for its end; by task."""
    RESPONSES = "responses"
    """How a deliberation ended, or that it is to end; by task."""
    WORDS = "words"
    """What somebody says to a deliberation that is under way, or that it is to wait; by task."""
    PROGRESS = "progress"
    """What an agent is at."""
    TOOLS = "tools"
    """Tool calls and workflows, by workspace."""
    AUDIT = "audit"
    """Records of tool calls, and alerts; by tenant."""
    COUNCILS = "councils"
    """Who sits for a tenant."""
    WORK = "work"
    """Deliberations to be taken, by role."""
    CALLS = "calls"
    """Tool calls to be taken, by workspace."""
    CANCEL = "cancel"
    """Signal: stop a deliberation; by task."""
    STEER = "steer"
    """Signal: something was said to a deliberation, or it is to wait or to go on; by task."""
    GROWING = "growing"
    """Signal: what a seat is writing; by task."""
    TAKEN = "taken"
    """Signal: a host took up work that was delivered before; by task."""
    LINK = "link"
    """Signal: bytes between a host and the link of a workspace's pod, by the pod and which of them
    hears.
    """
    FIGURES = "figures"
    """Signal: the figures of a process."""
    HOSTS = "hosts"
    """Asked and answered: how each host is; by the fleet."""
    GRAPH = "graph"
    """Asked and answered: questions about the graph, by whoever writes it."""
    REPOSITORIES = "repositories"
    """Asked and answered: what hosts that share no disk need of repositories; by whoever is asked.
    """

    def of(self, about: str) -> Topic:
        """Return the topic of one thing."""
        return Topic(self, about)

    @property
    def all(self) -> Topic:
        """The topic of every thing."""
        return Topic(self, None)


@dataclass(frozen=True, slots=True)
class Topic:
    """One thing of a channel by its id, or, for None, all of them."""

    channel: Channel
    about: str | None

    def covers(self, other: Topic) -> bool:
        """Whether every message of `other` is one of this too."""
        return self.channel is other.channel and self.about in {None, other.about}


HOUSE = Channel.REPOSITORIES.of("house")
"""Whoever holds the repositories is asked here."""


def deliberation_topics(task_id: str) -> tuple[Topic, ...]:
    """Return the topics that tell the story of one deliberation."""
    return (
        Channel.RESULTS.of(task_id),
        Channel.RESPONSES.of(task_id),
        Channel.PROGRESS.of(task_id),
        Channel.WORDS.of(task_id),
    )
