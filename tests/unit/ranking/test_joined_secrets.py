from __future__ import annotations

import base64
import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.domain.text import scrub
from moothall.ranking.screening import JoinedSecrets, find_joined_secrets

KEY = "sk-" + "proj-" + "a1B2c3D4" * 5
OWN = "correct-horse-battery"


def clean(text: str) -> str:
    return scrub(text, (OWN,))


def diff(path: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        f"a/{path}",
        f"b/{path}",
        n=1,
    )
    text = "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
    return f"diff --git a/{path} b/{path}\n" + (
        text if before else text.replace(f"--- a/{path}", "--- /dev/null", 1)
    )


def find_secrets(
    path: str,
    after: str,
    before: str = "x = 1\n",
    *,
    knows_base: bool = True,
    tests: tuple[str, ...] = (),
) -> JoinedSecrets:
    return find_joined_secrets(
        diff(path, before, before + after), {path: before} if knows_base else {}, tests, clean
    )


HALF, REST = KEY[:12], KEY[12:]
ENCODED = base64.b64encode(KEY.encode()).decode()


@pytest.mark.parametrize(
    "code",
    [
        f"k = {HALF!r} + {REST!r}\n",
        f"k = {HALF!r} {REST!r}\n",
        f"k = ({HALF!r}\n     {REST!r})\n",
        f"a = {HALF!r}\ndef f():\n    b = {REST!r}\n    return a + b\n",
        f"a = {HALF!r}\nk = f'{{a}}{REST}'\n",
        f"k = ''.join([{HALF!r}, {REST!r}])\n",
        f"parts = ({HALF!r}, {REST!r})\nk = ''.join(parts)\n",
        f"k = '{{}}{{}}'.format({HALF!r}, {REST!r})\n",
        f"k = '%s%s' % ({HALF!r}, {REST!r})\n",
        f"k = {KEY[::-1]!r}[::-1]\n",
        f"import base64\nk = base64.b64decode({ENCODED!r}).decode()\n",
        f"import base64\nk = base64.b64decode({ENCODED[:20]!r} + {ENCODED[20:]!r})\n",
        f"k = bytes.fromhex({KEY.encode().hex()!r}).decode()\n",
        f"k = bytes({list(KEY.encode())}).decode()\n",
        f"k = ''.join(chr(c) for c in {list(KEY.encode())})\n",
        f"k = ''.join(map(chr, {list(KEY.encode())}))\n",
        f"k = {HALF!r}.replace('-', '-') + {REST!r}.strip()\n",
        f"k = {KEY.replace('a', '@')!r}.replace('@', 'a')\n",
    ],
)
def test_a_secret_that_python_literals_evaluate_to_is_certain(code: str) -> None:
    assert clean(code) == code, "no part of it shows"
    assert find_secrets("a.py", code).certain
    in_tests = find_secrets("tests/test_a.py", code, tests=("tests/test_a.py",))
    assert (in_tests.certain, bool(in_tests.doubtful)) == ((), True)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("a.go", f'var k = "{HALF}" +\n\t"{REST}"\n'),
        ("a.js", f"const k = '{HALF}' + `{REST}`\n"),
        ("a.php", f"$k = '{HALF}' . '{REST}';\n"),
        ("a.lua", f"k = '{HALF}' .. '{REST}'\n"),
        ("a.c", f'char *k = "{HALF}" /* and */ "{REST}";\n'),
        ("a.sh", f"k='{HALF}''{REST}'\n"),
        (
            "a.js",
            "const k = '" + "".join(f"\\x{ord(char):02x}" for char in HALF) + f"' + '{REST}'\n",
        ),
        ("broken.py", f"def (:\nk = '{HALF}' + '{REST}'\n"),
    ],
)
def test_adjacent_literals_of_other_languages_are_joined(path: str, code: str) -> None:
    assert clean(code) == code
    for knows_base in (True, False):
        assert find_secrets(path, code, knows_base=knows_base).certain


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("a.rs", f'let k = concat!("{HALF}", "{REST}");\n'),
        ("a.js", f"const k = ['{HALF}', '{REST}'].join('')\n"),
        ("a.go", f'a := "{HALF}"\nuse(a)\nb := "{REST}"\n'),
        ("a.yaml", f"key: {ENCODED}\n"),
        ("a.txt", f"{KEY[::-1]}\n"),
        ("a.py", f"k = mix({HALF!r}, {REST!r})\n"),
        ("a.py", f"k = {HALF!r} + secret + {REST!r}\n"),
    ],
)
def test_a_secret_that_takes_more_than_joining_is_doubtful(path: str, code: str) -> None:
    secrets = find_secrets(path, code)
    assert (bool(secrets.certain), bool(secrets.doubtful)) == (False, True)
    assert not any(KEY[5:] in line or ENCODED in line for line in secrets.doubtful)


def test_a_secret_of_the_operator_is_certain_in_every_file() -> None:
    hidden = base64.b64encode(f"password={OWN}".encode()).decode()
    assert find_secrets("a.yaml", f"x: {hidden}\n").certain
    assert find_secrets(
        "tests/test_a.py", f"x = {OWN[:8]!r} + {OWN[8:]!r}\n", tests=("tests/test_a.py",)
    ).certain


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("a.py", "url = 'https://' + host + '/a'\nname = 'task-' + str(number)\n"),
        ("a.go", 'import (\n\t"fmt"\n\t"os"\n)\nvar a = "sk-" + name\n'),
        ("a.py", "digest = '" + "0123456789abcdef" * 4 + "'\n"),
        ("a.js", "const url = `postgres://${user}:${word}@host/${name}`\n"),
    ],
)
def test_ordinary_code_is_neither_certain_nor_doubtful(path: str, code: str) -> None:
    assert find_secrets(path, code) == JoinedSecrets()


def test_a_secret_that_was_there_before_is_not_attributed_to_the_patch() -> None:
    old = f"k = {HALF!r} + {REST!r}\n"
    assert find_secrets("a.py", "y = 2\n", before=old) == JoinedSecrets()


def test_a_half_added_to_an_existing_half_is_found() -> None:
    assert find_secrets("a.py", f"k = A + {REST!r}\n", before=f"A = {HALF!r}\n").certain


@given(st.text(max_size=300), st.sampled_from(["a.py", "a.go", "a.js", "a"]))
def test_any_text_can_be_scanned(text: str, path: str) -> None:
    find_joined_secrets(
        f"diff --git a/{path} b/{path}\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+{text}",
        {},
        (),
        clean,
    )
