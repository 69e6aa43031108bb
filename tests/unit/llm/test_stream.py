"""Reading a stream: the events do not depend on the pieces of the stream."""

from __future__ import annotations

import contextlib
import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.llm.stream import BrokenStream, EventReader, PartialReply


def read_events(pieces: list[bytes]) -> list[str]:
    reader = EventReader()
    return [data for piece in pieces for data in reader.feed(piece)] + list(reader.finish())


@given(
    st.lists(st.text(st.characters(blacklist_categories=("Cs", "Cc"))), max_size=6),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_events_do_not_depend_on_the_pieces_of_the_stream(
    payloads: list[str], newline: str, cuts: list[int]
) -> None:
    raw = "".join(
        f": ping{newline}event: x{newline}data: {text}{newline}{newline}" for text in payloads
    ).encode()
    edges = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    pieces = [raw[start:end] for start, end in itertools.pairwise(edges)]
    assert read_events(pieces) == payloads


def test_data_of_several_lines_is_one_event() -> None:
    assert read_events([b"data: a\ndata:b\n\n"]) == ["a\nb"]


def test_the_last_event_needs_no_blank_line() -> None:
    assert read_events([b"data: [DONE]"]) == ["[DONE]"]


def test_a_character_may_be_split() -> None:
    raw = 'data: {"x": "é"}\n\n'.encode()
    assert read_events([raw[:13], raw[13:]]) == ['{"x": "é"}']


def test_invalid_utf8_is_a_broken_stream() -> None:
    with pytest.raises(BrokenStream, match="UTF-8"):
        read_events([b"data: \xff\xfe\n\n"])


def chunk(text: str | None, finish: str | None = None) -> str:
    return json.dumps(
        {
            "model": "m",
            "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}],
        }
    )


def test_chunks_become_a_reply() -> None:
    reply = PartialReply()
    for data in (
        chunk("he"),
        chunk(None),
        chunk("llo"),
        chunk("", "stop"),
        '{"choices": [], "usage": {"prompt_tokens": 7}}',
        "[DONE]",
    ):
        reply.add_event(data)
    assert ("".join(reply.text), reply.finish_reason, reply.model, reply.usage, reply.done) == (
        "hello",
        "stop",
        "m",
        {"prompt_tokens": 7},
        True,
    )


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        ({"code": 502, "message": "gone"}, False),
        ({"code": 400, "message": "no"}, True),
        (None, False),
    ],
)
def test_a_choice_that_ends_in_an_error_raises(error: object, permanent: bool) -> None:  # noqa: FBT001
    reply = PartialReply()
    reply.add_event(chunk("half an ans"))
    with pytest.raises(BrokenStream, match="the server reported") as raised:
        reply.add_event(
            json.dumps(
                {"choices": [{"delta": {"content": ""}, "finish_reason": "error", "error": error}]}
            )
        )
    assert raised.value.permanent is permanent


def test_null_and_blank_events_are_ignored() -> None:
    reply = PartialReply()
    for data in ("null", chunk("he"), " ", "null", chunk("llo", "stop"), "[DONE]"):
        reply.add_event(data)
    assert ("".join(reply.text), reply.finish_reason, reply.done) == ("hello", "stop", True)


def test_only_the_first_choice_counts() -> None:
    reply = PartialReply()
    reply.add_event(
        json.dumps(
            {
                "choices": [
                    {"index": 1, "delta": {"content": "other"}},
                    {"index": 0, "delta": {"content": "this"}},
                ]
            }
        )
    )
    assert reply.text == ["this"]


@pytest.mark.parametrize("data", ["{", "[]", '{"choices": 5}', '{"choices": [5]}', "[" * 100_000])
def test_an_invalid_chunk_is_a_broken_stream(data: str) -> None:
    with pytest.raises(BrokenStream):
        PartialReply().add_event(data)


@pytest.mark.parametrize(
    ("code", "permanent"),
    [
        (400, True),
        ("400", True),
        ("context_length_exceeded", True),
        ("insufficient_quota", True),
        (429, False),
        ("rate_limit_exceeded", False),
        (500, False),
        ("x", False),
    ],
)
def test_errors_in_the_stream_are_temporary_or_permanent(code: object, permanent: bool) -> None:  # noqa: FBT001
    with pytest.raises(BrokenStream, match="out of blocks") as raised:
        PartialReply().add_event(json.dumps({"error": {"message": "out of blocks", "code": code}}))
    assert raised.value.permanent is permanent


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "choices",
                        "delta",
                        "content",
                        "message",
                        "usage",
                        "index",
                        "finish_reason",
                        "error",
                        "code",
                    ]
                ),
                inner,
            )
        ),
    )
)
def test_any_json_is_accepted_or_refused(value: object) -> None:
    with contextlib.suppress(BrokenStream):
        PartialReply().add_event(json.dumps(value))


def token(text: str, chance: float, **alternatives: float) -> dict[str, object]:
    """A token in vLLM's format. Numbers among the alternatives begin with `n`."""
    top = [
        {"token": name.removeprefix("n"), "logprob": math.log(value)}
        for name, value in alternatives.items()
    ]
    return {
        "token": text,
        "logprob": math.log(chance),
        "bytes": [],
        "top_logprobs": [{"token": text, "logprob": math.log(chance)}, *top],
    }


def test_probabilities_of_the_last_number_are_recorded() -> None:
    assembly = PartialReply()
    for text, logprobs in (
        ('{"met": [', [token("{", 1.0)]),
        ("3", [token("3", 1.0)]),
        ('], "score": 1', [token(" ", 1.0), token("1", 0.5, n7=0.25, x=0.25)]),
        ("0}", [token("0", 0.75), token("}", 1.0)]),
    ):
        assembly.add_event(
            json.dumps(
                {"choices": [{"delta": {"content": text}, "logprobs": {"content": logprobs}}]}
            )
        )
    assert assembly.digits == [(("1", 0.5), ("7", 0.25)), (("0", 0.75),)]
    assert list(assembly.earlier_digits) == [((("3", 1.0),),)]


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["content", "token", "logprob", "top_logprobs"]), inner
            )
        ),
        max_leaves=12,
    )
)
def test_malformed_logprobs_do_not_change_the_text(logprobs: object) -> None:
    assembly = PartialReply()
    assembly.add_event(json.dumps({"choices": [{"delta": {"content": "a"}, "logprobs": logprobs}]}))
    assert assembly.text == ["a"]
    assert all(0 <= chance <= 1 for candidates in assembly.digits for _, chance in candidates)
