"""The only registry of key-value buckets; the set-up of a bus is made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moothall.errors import InvalidRequest
from moothall.events.registry import DAY, check_token


@dataclass(frozen=True, slots=True)
class BucketSpec:
    """A key-value bucket: the newest document under each key. `max_age` in seconds, 0 for ever."""

    name: str
    about: str
    max_age: float = 0.0

    def check(self, key: str) -> str:
        """Return a key if it may be one; its parts may be divided by dots. Raises
        `InvalidRequest`.
        """
        return ".".join(check_token(part, "key") for part in key.split("."))


DOCUMENTS = BucketSpec("deliberations", "how each deliberation stands: what clients poll")
BUCKETS: Mapping[str, BucketSpec] = {
    spec.name: spec
    for spec in (
        DOCUMENTS,
        BucketSpec(
            "tools", "<tenant>.<tool>: whether an operator let a tenant have a tool, who and why"
        ),
        BucketSpec(
            "parked",
            "<tenant>.<id>: denied requests that an operator may allow, and what was said",
            max_age=7 * DAY,
        ),
        BucketSpec(
            "budgets",
            "<tenant>.<story_id>: a story's budget, and what each of its deliberations has drawn "
            "and spent of it",
        ),
        BucketSpec("webhooks", "how far the server at each URL has been told of decisions"),
        BucketSpec("spent", "ids of approvals that were used", max_age=7 * DAY),
        BucketSpec(
            "rates",
            "<tenant>.<tool>: when its last calls were made, by whatever process",
            max_age=DAY,
        ),
        BucketSpec(
            "workflows",
            "<tenant>.<workspace>.<id>: whether a workflow is under way, and how its workspace is "
            "opened again",
            max_age=7 * DAY,
        ),
        BucketSpec(
            "sessions",
            "<tenant>.<digest>: what is known of a session of the agent service",
            max_age=7 * DAY,
        ),
        BucketSpec(
            "bundles",
            "<tenant>.<digest>: packs of a story that a caller had kept, and until when",
            max_age=7 * DAY,
        ),
        BucketSpec(
            "leases",
            "<what>: which process does what one alone may do at a time; renewed while it lives",
            max_age=DAY,
        ),
        BucketSpec(
            "hidden", "<tenant>.<digest>: tests of callers that no seat sees", max_age=30 * DAY
        ),
        BucketSpec(
            "revoked",
            "ids of capability tokens, and workspaces, whose tokens are called off",
            max_age=7 * DAY,
        ),
    )
}


def bucket_of(name: str) -> BucketSpec:
    """Return a bucket by its name. Raises `InvalidRequest` for one that isn't registered."""
    if name not in BUCKETS:
        raise InvalidRequest(f"no bucket {name!r}; there are {', '.join(BUCKETS)}")
    return BUCKETS[name]
