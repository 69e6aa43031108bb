"""What a Dockerfile may say. An engine carries out some of it with its own hands and its own
network: ADD fetches URLs, FROM and COPY --from pull images. So only what is known to be harmless is
taken, and what could be read in two ways is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from moothall.errors import InvalidRequest, Refused

_TAKEN = frozenset(
    [
        "ARG",
        "CMD",
        "COPY",
        "ENTRYPOINT",
        "ENV",
        "EXPOSE",
        "FROM",
        "LABEL",
        "RUN",
        "SHELL",
        "STOPSIGNAL",
        "USER",
        "WORKDIR",
    ]
)
_DIRECTIVE = re.compile(r"\s*#\s*[A-Za-z]+\s*=")
_CONTINUED = re.compile(r"\\[ \t]*$")
_STAGE = re.compile(r"[a-z][a-z0-9_.-]*")
_NUMBER = re.compile(r"[0-9]+")
_WHOLE = "scratch"


def check(text: str, allowed: Callable[[str], bool], *, runs: bool) -> tuple[str, ...]:
    """Return the images that it builds on, beside `scratch`. `allowed` says which may be; `runs`:
    RUN may stand in it.

    Raises `Refused` for what it may not say, `InvalidRequest` for what is no Dockerfile.
    """
    stages: set[str] = set()
    images: list[str] = []
    begun = False
    for instruction, rest in _instructions(text):
        _require_known(instruction, runs=runs)
        begun = begun or instruction == "FROM"
        if not begun and instruction != "ARG":
            break
        found: Iterable[str] = ()
        if instruction == "FROM":
            image, stage = _from(rest)
            found = () if image == _WHOLE else (image,)
        elif instruction == "COPY":
            found, stage = (
                [source for source in _sources(rest) if not _NUMBER.fullmatch(source)],
                "",
            )
        else:
            continue
        for image in (one for one in found if one not in stages):
            if not allowed(image):
                raise Refused(
                    f"nothing may be built on {image[:100]!r} here (docker.images), only on "
                    "scratch and what is allowed"
                )
            images.append(image)
        stages.add(stage)
    if not begun:
        raise InvalidRequest("a Dockerfile begins with FROM")
    return tuple(dict.fromkeys(images))


def _require_known(instruction: str, *, runs: bool) -> None:
    if instruction not in _TAKEN:
        more = "; COPY copies files" if instruction == "ADD" else ""
        raise Refused(
            f"{instruction[:40]!r} is not taken in a Dockerfile{more}; taken are "
            f"{', '.join(sorted(_TAKEN))}"
        )
    if instruction == "RUN" and not runs:
        raise Refused(
            "RUN is not taken in a Dockerfile here (docker.build_runs): copy what is needed, and "
            "act in a container"
        )


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield (INSTRUCTION, rest), lines that go on put together. What engines read differently is
    refused.
    """
    if not text.isprintable() and re.search(
        r"[^\S\n\r\t ]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u0085\u2028\u2029\ufeff]", text
    ):
        raise Refused(
            "a Dockerfile has spaces, tabs and line ends, and no other blank or control characters"
        )
    whole = ""
    for raw in text.split("\n"):
        line = raw.removesuffix("\r")
        if _DIRECTIVE.match(line):
            raise Refused(
                "directives such as # escape= and # syntax= are not taken in a Dockerfile"
            )
        if line.lstrip(" \t").startswith("#") or (whole and not line.strip(" \t")):
            continue
        if _CONTINUED.search(line):
            kept = _CONTINUED.sub("", line)
            if kept.endswith("\\"):
                raise Refused(
                    "a line of a Dockerfile ends with two backslashes, which engines read "
                    "differently"
                )
            whole += kept
            continue
        whole += line
        if whole.strip(" \t"):
            yield _split(whole)
        whole = ""
    if whole.strip(" \t"):
        yield _split(whole)


def _split(line: str) -> tuple[str, str]:
    first, _, rest = line.strip(" \t").replace("\t", " ").partition(" ")
    if "<<" in rest and first.upper() in {"RUN", "COPY"}:
        raise Refused("documents in a Dockerfile (<<) are not taken: put them into a file")
    return first.upper(), rest.strip(" ")


def _from(rest: str) -> tuple[str, str]:
    words = rest.split()
    named = len(words) == 3 and words[1].upper() == "AS" and _STAGE.fullmatch(words[2].lower())  # noqa: PLR2004 - image AS name
    if not (len(words) == 1 or named):
        raise Refused("FROM takes an image, or an image AS a name, and nothing else")
    return words[0], words[2].lower() if named else ""


def _sources(rest: str) -> Iterator[str]:
    for word in rest.split():
        if not word.startswith("--"):
            return
        option, _, value = word.partition("=")
        if option == "--from":
            yield value
        elif option not in {"--chown", "--chmod"}:
            raise Refused(f"COPY takes --from, --chown and --chmod, not {word[:40]!r}")
