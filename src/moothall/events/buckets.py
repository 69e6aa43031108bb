"""The only registry of key-value buckets. The setup of a bus creates them from it."""

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


DOCUMENTS = BucketSpec("deliberations", "the status document of each deliberation, for polling")
BUCKETS: Mapping[str, BucketSpec] = {
    spec.name: spec
    for spec in (
        DOCUMENTS,
        BucketSpec(
            "tools",
            "<tenant>.<tool>: whether an operator allowed a tool for a tenant, by whom and why",
        ),
        BucketSpec(
            "parked",
            "<tenant>.<id>: denied requests that an operator may allow, and the decisions",
            max_age=7 * DAY,
        ),
        BucketSpec(
            "budgets",
            "<tenant>.<story_id>: a story's budget, with the amounts that each of its "
            "deliberations has reserved and spent",
        ),
        BucketSpec("webhooks", "the seq of the last decision delivered to each URL"),
        BucketSpec("spent", "ids of approvals that were used", max_age=7 * DAY),
        BucketSpec(
            "rates",
            "<tenant>.<tool>: the times of its last calls, from all processes",
            max_age=DAY,
        ),
        BucketSpec(
            "workflows",
            "<tenant>.<workspace>.<id>: whether a workflow is running, and how to reopen its "
            "workspace",
            max_age=7 * DAY,
        ),
        BucketSpec(
            "sessions",
            "<tenant>.<digest>: the state of a session of the agent service",
            max_age=7 * DAY,
        ),
        BucketSpec(
            "bundles",
            "<tenant>.<digest>: contexts of a story that a caller stored, and their expiry",
            max_age=7 * DAY,
        ),
        BucketSpec(
            "leases",
            "<name>: the process that holds a lease; renewed while the process lives",
            max_age=DAY,
        ),
        BucketSpec(
            "hidden", "<tenant>.<digest>: callers' tests, hidden from all seats", max_age=30 * DAY
        ),
        BucketSpec(
            "revoked",
            "ids of revoked capability tokens, and of workspaces whose tokens are revoked",
            max_age=7 * DAY,
        ),
    )
}


def bucket_of(name: str) -> BucketSpec:
    """Return a bucket by its name. Raises `InvalidRequest` for one that isn't registered."""
    if name not in BUCKETS:
        raise InvalidRequest(f"no bucket {name!r}; there are {', '.join(BUCKETS)}")
    return BUCKETS[name]
