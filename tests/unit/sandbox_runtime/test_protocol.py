from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.sandbox_runtime.protocol import MAX_FRAME, FrameReader, ProtocolError, pack

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@given(
    messages=st.lists(st.dictionaries(st.text(), VALUES, max_size=3), max_size=4),
    size=st.integers(1, 50),
)
def test_messages_are_reassembled_however_they_are_split(
    messages: list[dict[str, Any]], size: int
) -> None:
    raw = b"".join(pack(message) for message in messages)
    frames, received = FrameReader(), []
    for at in range(0, len(raw), size):
        received += frames.feed(raw[at : at + size])
    assert received == messages


@pytest.mark.parametrize(
    "raw", [(MAX_FRAME + 1).to_bytes(4, "big"), b"\0\0\0\2[]", b"\0\0\0\3no!", b"\0\0\0\2\xff\xff"]
)
def test_an_invalid_message_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        FrameReader().feed(raw)
