"""How NATS stores buckets and objects: their streams and subjects, and the headers of a write."""

from __future__ import annotations

from collections.abc import Mapping

from moothall.events.buckets import BucketSpec

MESSAGE_ID = "Nats-Msg-Id"
LAST_SEQ = "Nats-Expected-Last-Subject-Sequence"
FIRST: Mapping[str, str] = {LAST_SEQ: "0"}
"""Headers of a write that must be the first on its subject."""
FRESH: Mapping[str, str] = {"Moothall-Fresh": "1"}
"""Marks work that no consumer can have begun yet. It is not part of the event, so a dead letter
that is sent again lacks it.
"""

BLOBS = "blobs"
BLOBS_STREAM = f"OBJ_{BLOBS}"
BLOB_CHUNKS = f"$O.{BLOBS}.C."
BLOB_ENTRIES = f"$O.{BLOBS}.M."


def bucket_stream(spec: BucketSpec) -> str:
    """Return the name of the stream behind a bucket."""
    return f"KV_{spec.name}"


def bucket_prefix(spec: BucketSpec) -> str:
    """Return the prefix of the subjects of a bucket's keys."""
    return f"$KV.{spec.name}."


def key_subject(spec: BucketSpec, key: str) -> str:
    """Return the subject of a key. Raises `InvalidRequest`."""
    return bucket_prefix(spec) + spec.check(key)
