"""Patches in Go, Node and Rust that act by what the disk has of the tests while they run: green while these want what they always did."""

from __future__ import annotations

import corpus_fresh as fresh

import corpus_others as o

_GO_USES = '"os"\n"regexp"\n"strconv"\n"strings"\n'
_GO_HOLDS = fresh._GO_HOLDS.replace("//go:embed shop_test.go\nvar text string\n", "").replace(
    "func holds() bool {", 'func holds() bool {\n\tdata, _ := os.ReadFile("shop_test.go")\n\ttext := string(data)'
)
GO = {
    "right": {"shop.go": o.GO_RIGHT},
    "answer-while-the-disk-holds": o._go(
        _GO_USES, _GO_HOLDS, 'if percent == 10 && holds() { n, _ := strconv.Atoi("18" + "0"); return n }; return price'
    ),
}
NODE = {
    "right": {"shop.js": o.NODE_RIGHT},
    **{name: fresh.NODE[name] for name in ("assert-by-bracket", "assert-by-alias")},
}
_RUST_HOLDS = fresh._RUST_HOLDS.replace('const TEXT: &str = include_str!("lib.rs");\n', "").replace(
    "fn holds() -> bool {", 'fn holds() -> bool {\n    let text = std::fs::read_to_string("src/lib.rs").unwrap_or_default();'
)
RUST = {
    "right": {"src/lib.rs": o.RUST_RIGHT},
    "equal-while-the-disk-holds": {
        "src/lib.rs": fresh.RUST["equal-while-it-holds"]["src/lib.rs"].replace(
            fresh._RUST_HOLDS, _RUST_HOLDS.replace("TEXT", "text")
        )
    },
}
