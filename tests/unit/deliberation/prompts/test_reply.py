from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.authorization.rules import grant_for
from moothall.deliberation.prompts import reply
from moothall.deliberation.prompts.reply import Turn, answer_so_far
from moothall.deliberation.prompts.text_calls import MalformedReplyError
from moothall.deliberation.recorded_model import Recording
from moothall.domain.budget import Usage
from moothall.domain.chat import ChatReply, Likely
from moothall.domain.codec import dump
from moothall.domain.event import Event, EventType
from moothall.domain.tool import Action
from moothall.tools.catalogue import list_tools

jsonschema = pytest.importorskip("jsonschema", reason="comes with ray")

SPECS = list_tools(grant_for("dev"), core=True)
BLOCK = '<tool>{"name": "files.read", "args": {"path": "a.py"}}</tool>'


@pytest.mark.parametrize(
    ("score", "digits", "mean"),
    [
        (7, (), 7),
        (7, ((("7", 0.6), ("8", 0.2), ("3", 0.2)),), 6.4),
        (7, ((("7", 0.5), ("85", 0.5)),), 7),
        (7, ((("6", 1.0),),), 7),  # of another number
        (10, ((("1", 0.8), ("6", 0.2)), (("0", 1.0),)), 9.2),
        (10, ((("10", 0.5), ("0", 0.5)),), 5),
        (7, ((("7", 0.0),),), 7),
    ],
)
def test_a_score_is_the_mean_of_the_possible_digits_weighted_by_probability(
    score: int, digits: tuple[Likely, ...], mean: float
) -> None:
    text = json.dumps({"comment": "c", "met": [], "unmet": [], "score": score})
    assert reply.read_review(
        ChatReply(text, "stop", Usage(), digits=digits), 1
    ).score == pytest.approx(mean)


LIKELY_8 = ((("8", 0.5), ("6", 0.5)),)
LIKELY_3 = ((("3", 0.8), ("8", 0.2)),)


@pytest.mark.parametrize(
    ("earlier_digits", "digits", "mean"),
    [
        ((), (), 5.5),
        ((LIKELY_8,), LIKELY_3, 5.5),  # expected values of 7 and 4
        ((LIKELY_3, LIKELY_8), LIKELY_3, 5.5),  # a number before the scores
        ((LIKELY_8,), LIKELY_8, 5.5),  # of another number: the scores as they are
        ((((("8", 0.5), ("2", 0.5)),),), LIKELY_3, 4.5),
    ],
)
def test_each_criterion_has_a_score_with_its_own_probabilities(
    earlier_digits: tuple[tuple[Likely, ...], ...], digits: tuple[Likely, ...], mean: float
) -> None:
    text = json.dumps({"comment": "c", "met": [], "unmet": [1], "scores": [8, 3]})
    answer = ChatReply(text, "stop", Usage(), digits=digits, earlier_digits=earlier_digits)
    assert reply.read_review(answer, 2).score == pytest.approx(mean)


def test_one_score_is_accepted_for_several_criteria() -> None:
    assert reply.read_review(chat_reply('{"comment": "c", "score": 4}'), 2).score == 4


@pytest.mark.parametrize("scores", ["[8]", "[8, 11]", "[8, true]", '["8", 3]', "8"])
def test_scores_that_do_not_match_the_criteria_are_refused(scores: str) -> None:
    with pytest.raises(MalformedReplyError, match="score"):
        reply.read_review(chat_reply(f'{{"comment": "c", "scores": {scores}}}'), 2)


def chat_reply(text: str, finish_reason: str = "stop") -> ChatReply:
    return ChatReply(text, finish_reason, Usage())


@pytest.mark.parametrize(
    "text",
    [
        '{"thought": "t", "actions": [{"tool": "files.read", "args": {"path": "a.py"}}]}',
        (
            '```json\n{"thought": "t", "actions": [{"tool": "files.read", "args": {"path": '
            '"a.py"}}]}\n```'
        ),
        'Sure:\n{"thought": "t", "actions": [{"name": "files.read", "args": {"path": "a.py"}}]}',
        (
            '<think>{"finish": "no"}</think>{"thought": "t", "actions": [{"tool": "files.read", '
            '"args": {"path": "a.py"}}]}'
        ),
    ],
)
def test_json_turns_are_read(text: str) -> None:
    assert reply.read_turn(chat_reply(text), "json") == Turn(
        "t", (Action("files.read", {"path": "a.py"}),)
    )


def test_json_and_block_replies_are_equivalent() -> None:
    as_json = '{"thought": "look", "actions": [{"tool": "files.read", "args": {"path": "a.py"}}]}'
    assert reply.read_turn(chat_reply(as_json), "json") == reply.read_turn(
        chat_reply(f"look\n{BLOCK}"), "blocks"
    )
    as_json = '{"thought": "", "finish": "Added it."}'
    assert reply.read_turn(chat_reply(as_json), "json") == reply.read_turn(
        chat_reply("<finish>Added it.</finish>"), "blocks"
    )


def test_the_text_of_a_block_may_contain_a_closing_tag() -> None:
    args = {"path": "a.html", "content": "<tool>x</tool>\n<finish>"}
    text = f"one\n<tool>{json.dumps({'name': 'files.write', 'args': args})}</tool>\ntwo {BLOCK}"
    turn = reply.read_turn(chat_reply(text), "blocks")
    assert [action.arguments for action in turn.actions] == [args, {"path": "a.py"}]
    assert turn.thought == "one two"


def test_a_block_in_a_markdown_fence_is_read() -> None:
    text = '<tool>\n```json\n{"name": "files.read", "args": {"path": "a.py"}}\n```\n</tool>'
    assert reply.read_turn(chat_reply(text), "blocks").actions == (
        Action("files.read", {"path": "a.py"}),
    )


def test_raw_line_breaks_in_a_string_are_read() -> None:
    text = (
        '<tool>{"name": "files.write", "args": {"path": "a.py", "content": "x = 1\ny = 2\n'
        '"}}</tool>'
    )
    assert (
        reply.read_turn(chat_reply(text), "blocks").actions[0].arguments["content"]
        == "x = 1\ny = 2\n"
    )


def test_python_turns_are_read() -> None:
    assert reply.read_turn(chat_reply("<python>print(1)</python>"), "blocks") == Turn(
        python="print(1)"
    )


@pytest.mark.parametrize(
    ("mode", "text", "reason"),
    [
        ("json", "", "no JSON object"),
        ("json", "[1]", "no JSON object"),
        ("json", '{"finish": ""}', "'finish' is a text that is not empty"),
        ("json", '{"answer": "a"}', "unknown field 'answer'"),
        ("json", '{"finish": NaN}', "NaN is no JSON"),
        ("json", '{"actions": []}', "list of 1 to 8"),
        ("json", '{"actions": ["files.read"]}', "an action is an object"),
        ("json", '{"actions": [{"args": {}}]}', "does not name its tool"),
        (
            "json",
            '{"actions": [{"tool": "files.read", "args": "a.py"}]}',
            "args of files.read are no object",
        ),
        ("json", '{"actions": [{"tool": "a", "args": {"x": ' + "[" * 100_000, "nested too deeply"),
        ("blocks", "I think so.", "none of <tool>, <finish>"),
        ("blocks", f"{BLOCK}<python>x = 1</python>", "tool and python"),
        ("blocks", "<finish>x", "not closed by </finish>"),
        ("blocks", "<tool>files.read</tool>", "holds no JSON object"),
        ("blocks", '<tool>{"name": "files.read"', "JSON is broken"),
        ("blocks", "<finish> </finish>", "<finish> is empty"),
        ("blocks", BLOCK * 9, "9 tool calls"),
    ],
)
def test_an_invalid_turn_is_reported_with_an_example_of_a_valid_one(
    mode: Any, text: str, reason: str
) -> None:
    with pytest.raises(MalformedReplyError) as caught:
        reply.read_turn(chat_reply(text), mode)
    assert reason in str(caught.value)
    assert "Right is, for example" in str(caught.value)


def test_a_truncated_reply_has_its_own_message() -> None:
    with pytest.raises(MalformedReplyError, match="cut off because it was too long"):
        reply.read_turn(chat_reply('{"finish": "all fine"}', "length"), "json")


@given(st.text(), st.sampled_from(["json", "blocks"]))
def test_any_text_is_read_as_a_turn_or_malformed(text: str, mode: Any) -> None:
    try:
        turn = reply.read_turn(chat_reply(text), mode)
    except MalformedReplyError:
        return
    assert sum([bool(turn.actions), turn.python is not None, turn.finish is not None]) == 1


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_any_json_is_read_as_a_turn_or_malformed(value: Any) -> None:
    for wrapped in (
        value,
        {"actions": value},
        {"finish": value},
        {"actions": [value]},
        {"approaches": value, "score": value},
    ):
        text = json.dumps(wrapped)
        for read in (
            lambda r: reply.read_turn(r, "json"),
            lambda r: reply.read_approaches(r, 2),
            lambda r: reply.read_review(r, 2),
        ):
            try:
                read(chat_reply(text))
            except MalformedReplyError:
                continue


def test_the_schema_accepts_turns_and_nothing_else() -> None:
    schema = reply.turn_schema(SPECS).schema
    valid_turns = [
        {
            "thought": "t",
            "actions": [{"tool": "files.append", "args": {"path": "a", "content": "b"}}],
        },
        {"thought": "t", "finish": "x"},
    ]
    invalid_turns = [
        {"thought": "t"},
        {"thought": "t", "finish": "x", "actions": []},
        {"thought": "t", "actions": [{"tool": "rm", "args": {}}]},
        {"thought": "t", "actions": [{"tool": "files.append", "args": {"path": "a"}}]},
        {"thought": "t" * 500, "finish": "x"},
        {"thought": "t", "python": "x"},
    ]
    jsonschema.Draft202012Validator.check_schema(dict(schema))
    validator = jsonschema.Draft202012Validator(dict(schema))
    assert all(validator.is_valid(item) for item in valid_turns)
    assert not any(validator.is_valid(item) for item in invalid_turns)


def test_every_string_and_list_of_every_schema_is_bounded() -> None:
    def walk(shape: Any) -> None:
        if isinstance(shape, dict):
            if shape.get("type") == "string":
                assert shape["maxLength"] <= reply.MAX_STRING
            if shape.get("type") == "array":
                assert shape["maxItems"] <= 100
            for inner in shape.values():
                walk(inner)
        if isinstance(shape, list):
            for inner in shape:
                walk(inner)

    every = list_tools(grant_for("dev"))
    for schema in (
        reply.turn_schema(every),
        reply.turn_schema(()),
        reply.approaches_schema(3),
        reply.review_schema(4),
    ):
        walk(dict(schema.schema))


def test_without_tools_the_schema_offers_only_finish() -> None:
    assert "actions" not in json.dumps(reply.turn_schema(()).schema)


def test_approaches_are_distinct_and_not_mere_tool_names() -> None:
    four_approaches = (
        '{"approaches": ["use  a loop", "files.read", "a set instead", "Use a loop", "a lookup '
        'table"]}'
    )
    assert reply.read_approaches(chat_reply(four_approaches), 3) == (
        "Use a loop",
        "a set instead",
        "a lookup table",
    )
    with pytest.raises(MalformedReplyError, match="1 distinct approaches, and 2 are needed"):
        reply.read_approaches(chat_reply('{"approaches": ["use a loop", "files.read"]}'), 2)


def test_a_review_is_read_and_invalid_entries_are_left_out() -> None:
    text = (
        '{"comment": "c", "met": [{"criterion": 1, "quote": "q"}, {"criterion": 9, "quote": "q"}, '
        '3], "unmet": [2, true], "score": 8}'
    )
    assert reply.read_review(chat_reply(text), 2) == reply.ReadReview(8, ((1, "q"),), (2,), "c")
    for score in ("11", "-1", "8.5", '"8"', "true", "null"):
        with pytest.raises(MalformedReplyError, match="score"):
            reply.read_review(chat_reply(f'{{"score": {score}}}'), 2)


def test_the_servers_details_of_a_score_are_recorded() -> None:
    """Otherwise a review would count differently when its deliberation is resumed."""
    answer = ChatReply('{"score": 7}', "stop", Usage(), digits=((("7", 0.6), ("8", 0.4)),))
    data = json.loads(
        json.dumps({"call_id": "t/a/verify/1.1", "answer": answer.text, **dump(answer)})
    )
    recording = Recording.of([Event("1", EventType.MODEL_CALLED, "t", data)])
    assert recording.answers["t/a/verify/1.1"] == answer


@given(st.text(), st.text(), st.integers(min_value=0))
def test_a_partial_answer_is_a_prefix_of_the_whole_answer(
    thought: str, answer: str, cut: int
) -> None:
    for text in (
        json.dumps({"thought": thought, "finish": answer}),
        json.dumps({"finish": answer}, ensure_ascii=False),
    ):
        assert answer.strip().startswith(answer_so_far(text[: cut % (len(text) + 1)]))
        assert answer_so_far(text) == answer.strip()


@given(st.text(alphabet="abc <>/finsh\n"), st.integers(min_value=0))
def test_a_partial_answer_between_tags_is_a_prefix_of_the_whole_answer(
    answer: str, cut: int
) -> None:
    text = f"so <finish>{answer}</finish>"
    full_answer = answer_so_far(text)
    assert full_answer == answer.partition("</finish>")[0].strip()
    assert full_answer.startswith(answer_so_far(text[: cut % (len(text) + 1)]))


@pytest.mark.parametrize(
    "text", ["", "so", "<tool>{", '{"thought": "so', '{"actions": []}', '{"finish": 1}', "{{"]
)
def test_a_reply_without_an_answer_yields_an_empty_partial_answer(text: str) -> None:
    assert answer_so_far(text) == ""
