"""Inputs for classes of JavaScript: what tests do with their instances."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.ranking.inputs.script_classes import changed_script_classes, script_steps

CODE = """class Stack {
  constructor(most) {
    this.items = [];
  }
  push(item) {
    this.items.push(item);
    return this;
  }
  get top() {
    return this.items[0];
  }
}
"""


def spelt(*sources: str, most: int = 40) -> list[str]:
    return [item.call for item in script_steps("Stack", sources, CODE, most)]


@pytest.mark.parametrize("head", ["", "export ", "export default ", "module.exports = ", "exports.Stack = ", "const Other = "])
def test_classes_at_the_top_that_differ(head: str) -> None:
    text = head + CODE
    other = text.replace("items[0]", "items[1]")
    assert changed_script_classes("a.js", text, [text, other]) == ("Stack",)
    assert changed_script_classes("a.js", text, [f"// said\n{text}", text]) == ()
    assert changed_script_classes("a.js", text, [other, text.replace("(most)", "(most, least)")]) == ()


def test_what_tests_do_with_one_comes_first_then_variants() -> None:
    test = "test('top', () => {\n  const s = new shop.Stack(2);\n  s.push({a: 1});\n  assert.equal(s.top, 1);\n});\ntest('no', () => { s.push(3); });\n"
    made = spelt(test)
    assert made[0] == 'it = new Stack(2); it.push({"a": 1}); it.top'
    assert "new Stack(2).top" in made
    assert any(said.startswith("it = new Stack(1);") for said in made)
    assert len(set(made)) == len(made) > 3


def test_steps_end_where_one_is_not_known() -> None:
    assert spelt("const s = new Stack(2); s.push(1); s.push(other); s.top;", most=1) == ["new Stack(2).push(1)"]
    assert spelt("let s = new Stack(2); s.push(1); s = other; s.top;", most=1) == ["new Stack(2).push(1)"]
    assert spelt("expect(new Stack('a').push(1).top).toBe(1)", most=1) == ['new Stack("a").push(1)']
    assert spelt("const s = new Stack(size); s.top; const t = new Stack(1); t.items.push(1); new Stack(2)") == []


@given(st.text(alphabet="new Stack(){};.top=,1'\"\n", max_size=200))
def test_whatever_stands_there_breaks_nothing(text: str) -> None:
    assert isinstance(changed_script_classes("a.js", text, [text, f"class Stack {{{text}"]), tuple)
    for item in script_steps("Stack", [f"s = new Stack(1); s.push({text}"], CODE, 10):
        assert "new Stack" in item.call
