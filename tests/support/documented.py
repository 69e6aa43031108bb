"""Blocks and commands of the documentation, for tests that run or check them."""

from __future__ import annotations

import itertools
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import click

from moothall.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page. `kind` is its whole info string, such as `sh run`."""

    page: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(kind: str = "") -> list[Block]:
    """Return the fenced blocks of all pages, or those of a kind."""
    all_blocks = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"(?ms)^( *)```(.*?)\n(.*?)^\1```$", text):
            line = text.count("\n", 0, match.start()) + 1
            all_blocks.append(Block(page, line, match[2].strip(), match[3]))
    return [block for block in all_blocks if kind in {"", block.kind}]


def commands(page: Path) -> list[str]:
    """Return the `moothall` commands of a page: in shell blocks, indented blocks and sentences."""
    text = page.read_text(encoding="utf-8")
    shell = "\n".join(re.findall(r"(?ms)^```sh.*?\n(.*?)^```$", text))
    prose = re.sub(r"(?ms)^ *```.*?^ *```$", "", text)
    shell += "\n" + "\n".join(re.findall(r"(?m)^    (\S.*)$", prose))
    found_commands, line = [], ""
    for part in shell.replace("\\\n", " ").splitlines():
        line = f"{line} {part}" if line else part
        try:
            found_commands += _of_line(line)
        except ValueError:  # a quotation that continues on the next line
            continue
        line = ""
    assert not line, f"{page.name}: a quotation does not end: {line[:200]}"
    found_commands += [
        span.replace("\\|", "|") for span in re.findall(r"`(moothall [^`\n]+)`", prose)
    ]
    return sorted(set(found_commands))


def _of_line(line: str) -> list[str]:
    """Return the commands of a line of shell. Raises `ValueError` if a quotation does not end."""
    simple_commands = []
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    simple: list[str] = []
    for word in itertools.chain(lexer, ["|"]):
        if word and not set(word) <= set("();<>|&"):
            simple.append(word)
            continue
        if "--" in simple[:-1] and simple[simple.index("--") + 1] == "moothall":
            simple = simple[simple.index("--") + 1 :]  # in a pod
        while simple and (simple[0] == "-" or re.match(r"[A-Z_]+=", simple[0])):
            simple.pop(0)  # an item of YAML, or a variable
        if simple and re.fullmatch(r"(.*/)?moothall", simple[0]):
            simple_commands.append(shlex.join(["moothall", *simple[1:]]))
        simple = []
    return simple_commands


def check_command(command: str) -> None:
    """Raise `AssertionError` unless the command and its options exist."""
    words = [word.strip("[]….,").partition("|")[0] for word in shlex.split(command)][1:]
    group: click.Command = main
    context = click.Context(main)
    while words:
        parameters = {
            option: parameter
            for parameter in group.params
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
        word = words.pop(0)
        if word == "--":
            return
        if word.startswith("-") and word not in {"--help", "-h"}:
            option = word.partition("=")[0]
            assert option in parameters, f"{command}: {group.name} has no option {option}"
            if isinstance(group, click.Group) and not getattr(parameters[option], "is_flag", False):
                words.pop(0)
        elif isinstance(group, click.Group) and word and not word.startswith("-"):
            subcommand = group.get_command(context, word)
            assert subcommand is not None, f"{command}: no command {word}"
            group = subcommand
