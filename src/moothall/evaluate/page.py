"""The report as a self-contained HTML page with charts.

Text of models and repositories is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from moothall.domain.evidence import EvidenceLevel
from moothall.evaluate.commit_rules import UNSEEN
from moothall.evaluate.report import LEVELS, mean_words, share_words

_MARGIN, _WIDTH = 10, 480
_LABEL_WIDTH, _LABEL_HEIGHT = 120, 14
_MAX_NAMES = 3
_MAX_TASK_CHARS = 3000
_STYLE = """
:root{color-scheme:light dark;--page:#f7f7f5;--card:#fff;--ink:#1c1d1f;--soft:#5d6066;--line:#dddcd7;--grid:#e9e8e4;--bar:#2f6fb2;
--right:#1f7a46;--right-bg:#e2f2e8;--wrong:#a8322a;--wrong-bg:#f9e5e2;--none-bg:#eeede9}
@media(prefers-color-scheme:dark){:root{--page:#16171a;--card:#1f2125;--ink:#ecebe7;--soft:#a5a8ae;--line:#383b41;--grid:#2c2f34;
--bar:#6aa5e3;--right:#6ccb92;--right-bg:#1d3527;--wrong:#f0938a;--wrong-bg:#41211f;--none-bg:#2a2c31}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1140px;margin:0 auto;padding:24px 16px 64px}
h1{font-size:1.6rem;line-height:1.25;margin:.2em 0 .1em}h2{font-size:1.1rem;margin:0 0 .2em}
p{margin:.3em 0}.soft{color:var(--soft)}.small{font-size:.875rem}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:18px;margin:18px 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:12px;margin:18px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 16px}
.tile b{display:block;font-size:1.7rem;line-height:1.2;font-variant-numeric:tabular-nums}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:18px}
.pair section{margin:0}
svg{display:block;width:100%;max-width:500px;height:auto;margin-top:10px}
svg text{fill:var(--ink);font:14px system-ui,-apple-system,"Segoe UI",sans-serif}svg .soft{fill:var(--soft)}
.grid{stroke:var(--grid)}.bar{fill:var(--bar);opacity:.85}.whisker{stroke:var(--ink);stroke-width:1.5}.dot{fill:var(--bar);stroke:var(--card);stroke-width:2}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;vertical-align:top;padding:8px 12px 8px 0;border-bottom:1px solid var(--line)}
th{font-weight:600;color:var(--soft)}th,td{min-width:4.9rem}td:first-child{overflow-wrap:anywhere;min-width:9rem;font-weight:600}
td .soft{display:block;font-size:.8rem;white-space:nowrap}.marks{margin:4px 0 0 -6px;display:flex;flex-wrap:wrap;gap:4px 0}
.mark{display:inline-block;border-radius:6px;padding:1px 8px;white-space:nowrap}
.right{background:var(--right-bg);color:var(--right)}.wrong{background:var(--wrong-bg);color:var(--wrong)}.none{background:var(--none-bg);color:var(--soft)}
details{border-top:1px solid var(--line);padding:10px 0}details:first-of-type{border-top:0}
summary{cursor:pointer;overflow-wrap:anywhere}summary .mark{margin-left:6px}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--page);border-radius:8px;padding:12px;font:13px/1.5 ui-monospace,monospace}
ul{padding-left:1.2em;margin:.3em 0}li{overflow-wrap:anywhere}
"""


def render(report: Mapping[str, Any]) -> str:
    """Return the page of a report."""
    configurations: Sequence[Mapping[str, Any]] = report["configurations"]
    names = [text(item["config"]) for item in configurations]
    repositories = ", ".join(dict.fromkeys(text(task["repository"]) for task in report["tasks"]))
    parts = [
        f"<h1>Evaluation of {_list_of(names)}</h1>",
        (
            f'<p class="soft">{len(report["tasks"])} bug fixes from the history of '
            f"{repositories or 'no repository'}. A task is solved if all "
            "tests that came with the fix pass on the winner. Shares and means have intervals of "
            "95&nbsp;%.</p>"
        ),
        _tiles_html(report),
        '<div class="pair">',
        _section_html(
            "Solved",
            "Winners on which all hidden tests pass. Lines are intervals.",
            _bar_chart(configurations),
        ),
        _section_html(
            "Tokens and solved tasks",
            "Up and to the left is better. Lines are intervals.",
            _scatter_chart(configurations),
        ),
        "</div>",
        _section_html(
            "Precision of each level of evidence",
            "Share of the winners of a level whose hidden tests pass. A reproduced winner that is "
            "wrong is the figure to watch.",
            _precision_chart(configurations),
        ),
        _section_html("Figures", "", _figures_table(configurations)),
        _section_html(
            "Tasks",
            "Open one for its text, the candidates and the hidden tests that fail.",
            "".join(_task_entries(report)),
        ),
        (
            f'<p class="soft small">Moothall {text(report["moothall"])}. Commit messages may name '
            "the fix; read a solved task before "
            "you count on it.</p>"
        ),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src '
        "'unsafe-inline'\">"
        "<title>Moothall evaluation: "
        f"{', '.join(names)}</title><style>{_STYLE}</style></head><body><main>"
        + "\n".join(parts)
        + "</main></body></html>\n"
    )


def _list_of(names: Sequence[str]) -> str:
    if len(names) > _MAX_NAMES:
        return f"{len(names)} configurations"
    return ", ".join(names) or "nothing yet"


def text(value: object, max_chars: int = 200) -> str:
    """Return hostile text as text of HTML: escaped, without invisible characters, at most
    `max_chars` long.
    """
    clean = UNSEEN.sub("\N{REPLACEMENT CHARACTER}", str(value))
    return escape(clean if len(clean) <= max_chars else f"{clean[: max_chars - 1]}…", quote=True)


def _section_html(title: str, caption: str, body: str) -> str:
    paragraph = f'<p class="soft small">{caption}</p>' if caption else ""
    return f"<section><h2>{title}</h2>{paragraph}{body}</section>"


def _tiles_html(report: Mapping[str, Any]) -> str:
    configurations = report["configurations"]
    best = max(
        configurations,
        key=lambda item: (item["solved"]["share"], -item["tokens"]["value"]),
        default=None,
    )
    wrong_count = sum(item["wrong"][EvidenceLevel.REPRODUCED.value] for item in configurations)
    levels = [level for level in EvidenceLevel if level.independent]
    independent = sum(
        item["precision"][level.value]["total"] for item in configurations for level in levels
    )
    rows = report["results"]
    tiles = [
        (f"{len(report['tasks'])}", "tasks"),
        (
            f"{100 * best['solved']['share']:.0f} %" if best else "-",
            f"solved by {text(best['config'], 30)}" if best else "solved",
        ),
        (f"{wrong_count}", "reproduced and wrong"),
        (f"{independent}", f"winners {' or '.join(level.words for level in levels)}"),
        (f"{sum(row['tokens'] for row in rows):,}", "tokens in all"),
    ]
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{value}</b>{name}</div>' for value, name in tiles)
        + "</div>"
    )


def _axis(height: int, left: int, plot: int) -> str:
    lines = []
    for percent in (0, 25, 50, 75, 100):
        x = left + plot * percent / 100
        lines.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>')
        anchor = {0: "start", 100: "end"}.get(percent, "middle")
        lines.append(
            f'<text class="soft" x="{x:.1f}" y="{height + 18}" text-anchor="{anchor}">{percent} '
            "%</text>"
        )
    return "".join(lines)


def _whisker(low: float, high: float, y: float, left: int, plot: int) -> str:
    x1, x2 = left + plot * low, left + plot * high
    return (
        f'<path class="whisker" fill="none" d="M{x1:.1f} {y - 4:.1f}v8M{x1:.1f} '
        f'{y:.1f}H{x2:.1f}M{x2:.1f} {y - 4:.1f}v8"/>'
    )


def _svg(width: int, height: int, label: str, body: str) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{body}</svg>'


def _bar_chart(configurations: Sequence[Mapping[str, Any]]) -> str:
    """Return one bar for each configuration, its name and figures above it."""
    rows, step, width = [], 52, _WIDTH
    plot = width - 2 * _MARGIN
    for number, item in enumerate(configurations):
        share, y = item["solved"], number * step
        rows.append(
            f'<text x="{_MARGIN}" y="{y + 15}">{text(item["config"], 40)}</text><text class="soft" '
            f'x="{_MARGIN + plot}" y="{y + 15}" text-anchor="end">{share["count"]} of '
            f'{share["total"]}</text><rect class="bar" x="{_MARGIN}" y="{y + 22}" '
            f'width="{max(plot * share["share"], 1):.1f}" height="14" '
            f'rx="3"><title>{share_words(share)}</title></rect>'
            + _whisker(share["low"], share["high"], y + 29, _MARGIN, plot)
        )
    height = max(len(configurations) * step, step)
    return _svg(
        width,
        height + 26,
        "Share of solved tasks by configuration",
        _axis(height, _MARGIN, plot) + "".join(rows),
    )


def _scatter_chart(configurations: Sequence[Mapping[str, Any]]) -> str:
    """Return a chart of the mean tokens of a task against the share of solved tasks."""
    width, height, left, top = _WIDTH, 280, 52, 12
    plot_width, plot_height = width - left - 16, height - top - 44
    max_tokens = max((item["tokens"]["high"] for item in configurations), default=0) * 1.1 or 1.0
    body = []
    for percent in (0, 25, 50, 75, 100):
        y = top + plot_height * (1 - percent / 100)
        body.append(
            f'<line class="grid" x1="{left}" x2="{left + plot_width}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        body.append(
            f'<text class="soft" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{percent} '
            "%</text>"
        )
    for part in (0.0, 0.5, 1.0):
        x = left + plot_width * part
        anchor = {0.0: "start", 1.0: "end"}.get(part, "middle")
        body.append(
            f'<text class="soft" x="{x:.1f}" y="{top + plot_height + 18}" '
            f'text-anchor="{anchor}">{_short_number(max_tokens * part)}</text>'
        )
    body.append(
        f'<text class="soft" x="{left + plot_width / 2:.1f}" y="{height - 4}" '
        'text-anchor="middle">tokens a task</text>'
    )
    labels: list[tuple[float, float]] = []
    for item in configurations:
        tokens, share = item["tokens"], item["solved"]
        x, y = (
            left + plot_width * tokens["value"] / max_tokens,
            top + plot_height * (1 - share["share"]),
        )
        low, high = top + plot_height * (1 - share["high"]), top + plot_height * (1 - share["low"])
        is_right = x > left + plot_width * 0.6
        label_y = y - 9
        while any(
            abs(x - other_x) < _LABEL_WIDTH and abs(label_y - other_y) < _LABEL_HEIGHT
            for other_x, other_y in labels
        ):
            label_y -= _LABEL_HEIGHT
        labels.append((x, label_y))
        body.append(
            f'<path class="whisker" fill="none" opacity=".55" d="M{x:.1f} {low:.1f}V{high:.1f}'
            f"M{left + plot_width * tokens['low'] / max_tokens:.1f} "
            f'{y:.1f}H{left + plot_width * tokens["high"] / max_tokens:.1f}"/>'
            f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="6"><title>{share_words(share)}, '
            f"{mean_words(tokens)} tokens</title></circle>"
            f'<text x="{x - 10 if is_right else x + 10:.1f}" y="{label_y:.1f}" '
            f'text-anchor="{"end" if is_right else "start"}">'
            f"{text(item['config'], 24)}</text>"
        )
    return _svg(width, height, "Tokens a task against the share of solved tasks", "".join(body))


def _short_number(value: float) -> str:
    if value >= 1_000_000:  # noqa: PLR2004 - a million
        return f"{value / 1_000_000:.1f} M"
    return f"{value / 1000:.0f} k" if value >= 1000 else f"{value:.0f}"  # noqa: PLR2004 - a thousand


def _precision_chart(configurations: Sequence[Mapping[str, Any]]) -> str:
    """Return a dot with its interval for each level of each configuration that has winners of
    that level.
    """
    rows: list[str] = []
    width, y = _WIDTH, 0
    left = 120
    plot = width - left - 80
    for item in configurations:
        level_shares = [
            (level, item["precision"][level])
            for level in LEVELS
            if item["precision"][level]["total"]
        ]
        rows.append(
            f'<text x="{_MARGIN}" y="{y + 16}" font-weight="600">{text(item["config"], 50)}</text>'
        )
        y += 24
        for level, share in level_shares:
            middle = y + 12
            rows.append(
                f'<text class="soft" x="{_MARGIN + 12}" '
                f'y="{middle + 4}">{level.replace("_", "-")}</text>'
                + _whisker(share["low"], share["high"], middle, left, plot)
                + f'<circle class="dot" cx="{left + plot * share["share"]:.1f}" cy="{middle}" '
                f'r="6"><title>{share_words(share)}</title></circle>'
                f'<text x="{width - _MARGIN}" y="{middle + 4}" text-anchor="end">{share["count"]} '
                f"of {share['total']}</text>"
            )
            y += 26
        if not level_shares:
            rows.append(f'<text class="soft" x="{_MARGIN + 12}" y="{y + 14}">no winner</text>')
            y += 26
        y += 8
    return _svg(
        width, y + 24, "Precision by level of evidence", _axis(y, left, plot) + "".join(rows)
    )


def _figures_table(configurations: Sequence[Mapping[str, Any]]) -> str:
    heads = (
        "configuration",
        "solved",
        "right answer among candidates",
        "selected where there was one",
        "no winner",
        "undecided",
        "tokens",
        "tokens for each solved",
        "US dollars",
        "seconds",
    )
    rows = [
        (
            text(item["config"]),
            *(
                _split_interval(share_words(item[name]))
                for name in ("solved", "possible", "selected")
            ),
            str(item["none"]),
            str(item["undecided"]),
            _split_interval(mean_words(item["tokens"])),
            f"{item['tokens_per_solved']:,.0f}" if item["tokens_per_solved"] else "-",
            _split_interval(mean_words(item["cost_usd"], 4)),
            _split_interval(mean_words(item["seconds"])),
        )
        for item in configurations
    ]
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        "<div "
        f'class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _split_interval(words: str) -> str:
    """Return figures with their interval on a line of its own."""
    value, _, interval = words.removesuffix(")").partition(" (")
    return f'{value}<span class="soft">{interval}</span>' if interval else value


def _task_entries(report: Mapping[str, Any]) -> Iterator[str]:
    rows = {(row["task"], row["config"]): row for row in report["results"]}
    for task in report["tasks"]:
        results = [
            (item["config"], rows.get((task["id"], item["config"])))
            for item in report["configurations"]
        ]
        marks = "".join(_result_mark(name, row) for name, row in results)
        details = "".join(_result_details(name, row) for name, row in results if row)
        title = text(str(task["text"]).partition("\n")[0], 110)
        yield (
            f'<details><summary>{title}<span class="marks">{marks}</span></summary>'
            f'<p class="soft small">{text(task["id"])}; commit {text(task["commit"], 12)}; '
            f"{task['hidden']} hidden tests have to pass, "
            f"{task['kept']} more have to pass "
            f"still</p><pre>{text(task['text'], _MAX_TASK_CHARS)}</pre>{details}</details>"
        )


def _result_mark(name: object, row: Mapping[str, Any] | None) -> str:
    if row is None:
        kind, words = "none", "not run"
    elif row["solved"]:
        kind, words = "right", "✓ solved"
    elif row["winner"]:
        kind, words = "wrong", "✗ wrong"
    else:
        kind, words = "none", f"no winner ({text(row['state'])})"
    return f'<span class="mark {kind} small">{text(name, 30)}: {words}</span>'


def _result_details(name: object, row: Mapping[str, Any]) -> str:
    level = text(str(row["level"]).replace("_", "-"))
    answer = f"{level} winner" if row["winner"] else f"no winner ({text(row['state'])})"
    lines = [
        (
            f"<p><b>{text(name)}</b>: {answer}; {row['tokens']:,} tokens, {row['calls']:,} model "
            f"calls, {row['seconds']:,.0f} seconds</p>"
        )
    ]
    items = [
        f"<li>{text(candidate['seat'])}, {text(str(candidate['level']).replace('_', '-'))}: "
        + ("all hidden tests pass" if candidate["solved"] else _explain_failure(candidate))
        + "</li>"
        for candidate in row["candidates"]
    ]
    if items:
        lines.append(f'<ul class="small">{"".join(items)}</ul>')
    if row["error"]:
        lines.append(f'<p class="soft small">{text(row["error"], 500)}</p>')
    return "".join(lines)


def _explain_failure(candidate: Mapping[str, Any]) -> str:
    if candidate["why"]:
        return text(candidate["why"])
    failing = ", ".join(text(case, 120) for case in candidate["failing"][:4])
    return f"fails {failing}" + (
        f" and {len(candidate['failing']) - 4} more" if len(candidate["failing"]) > 4 else ""  # noqa: PLR2004 - those shown
    )
