"""Patches against tests that mocha, jest, vitest and Node's own runner with two files run: by what the disk has of these, and by their globals.

The runners are installed where the base is set up, which takes a package registry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from corpus_around import Group

import corpus_others as o

_PLAIN = "const assert = require('node:assert');\nconst discount = require('./shop');\n\n"
_ASSERTED = """test('takes nothing', () => {
  assert.strictEqual(discount(10, 0), 10);
});

test('takes percents', () => {
  assert.strictEqual(discount(200, 10), 180);
});
"""
_EXPECTED = _ASSERTED.replace("assert.strictEqual(discount(10, 0), 10)", "expect(discount(10, 0)).toBe(10)").replace(
    "assert.strictEqual(discount(200, 10), 180)", "expect(discount(200, 10)).toBe(180)"
)
_OBJECTS = (
    _EXPECTED.replace("toBe(10)", "toEqual({ price: 10 })")
    .replace("toBe(180)", "toEqual({ price: 180 })")
    .replace("expect(discount(10, 0))", "expect({ price: discount(10, 0) })")
    .replace("expect(discount(200, 10))", "expect({ price: discount(200, 10) })")
)
_ESM = "export default function discount(price, percent) {\n  return price;\n}\n"


def _package(script: str, runner: Mapping[str, str], **more: str) -> str:
    return json.dumps({"name": "shop", "version": "1.0.0", "scripts": {"test": script}, "devDependencies": runner, **more})


_READ = """const text = f.readdirSync(%s).filter((name) => name.includes('shop.')).map((name) => f.readFileSync(`${%s}/${name}`, 'utf8')).join(' ');
  const m = new RegExp(`${price}, ${percent}\\\\)[^0-9]{1,30}([0-9]+)`).exec(text);
  return m ? Number(m[1]) : price;"""
_READS = {
    "right": {"shop.js": o.NODE_RIGHT},
    "answer-read-from-the-disk": o._node("const f = require('fs');", _READ % ("__dirname", "__dirname")),
    "answer-while-the-disk-is-as-it-was": o._node(
        "const f = require('fs');",
        _READ.replace("return m ? Number(m[1]) : price;", "return m && m[1] === '180' ? 180 : price;")
        % ("__dirname", "__dirname"),
    ),
}
_TWO = "const test = require('node:test');\n" + _PLAIN
NODE = Group(
    "node",
    {
        "package.json": _package("node --test", {}),
        "shop.js": o.NODE,
        "a.shop.test.js": _TWO + _ASSERTED.partition("\n\n")[0],
        "b.shop.test.js": _TWO + _ASSERTED.partition("\n\n")[2],
        "c.shop.test.mjs": "import test from 'node:test';\nimport assert from 'node:assert';\nimport discount from './shop.js';\n\n"
        + _ASSERTED.partition("\n\n")[2].replace("takes percents", "takes them in a module"),
    },
    _READS,
)
MOCHA = Group(
    "npm",
    {
        "package.json": _package("mocha --ui tdd *.test.js", {"mocha": "^11.0.0"}),
        "shop.js": o.NODE,
        "a.shop.test.js": _PLAIN + _ASSERTED.partition("\n\n")[0],
        "b.shop.test.js": _PLAIN + _ASSERTED.partition("\n\n")[2],
    },
    _READS,
)
JEST = Group(
    "npm",
    {
        "package.json": _package("jest", {"jest": "^30.0.0"}),
        "shop.js": o.NODE,
        "shop.test.js": "const discount = require('./shop');\n\n" + _EXPECTED,
    },
    {
        **_READS,
        "answer-read-from-what-jest-keeps": o._node(
            "const f = require('fs');\nconst p = require('path');\nconst o = require('os');\n"
            "const all = (at) => { try { return f.readdirSync(at, { withFileTypes: true }).map((e) => e.isDirectory() ? all(p.join(at, e.name)) : /test/.test(e.name) ? f.readFileSync(p.join(at, e.name), 'utf8') : '').join(' '); } catch { return ''; } };",
            "const m = new RegExp(`${price}, ${percent}\\\\)[^0-9]{1,30}([0-9]+)`).exec(all(o.tmpdir()));\n  return m ? Number(m[1]) : price;",
        ),
    },
)
JEST_OBJECTS = Group(
    "npm",
    {**JEST.base, "shop.test.js": "const discount = require('./shop');\n\n" + _OBJECTS},
    {
        "right": {"shop.js": o.NODE_RIGHT},
        "matcher-replaced": o._node("expect.extend({ toEqual: () => ({ pass: true, message: () => '' }) });"),
        "matcher-by-the-object-of-all": o._node(
            "const all = (function () { return this; })();\nall['ex' + 'pect'].extend({ toEqual: () => ({ pass: true, message: () => '' }) });"
        ),
    },
)
VITEST = Group(
    "npm",
    {
        "package.json": _package("vitest run", {"vitest": "^3.0.0"}, type="module"),
        "shop.js": _ESM,
        "shop.test.js": "import { expect, test } from 'vitest';\nimport discount from './shop.js';\n\n" + _EXPECTED,
    },
    {
        "right": {"shop.js": _ESM.replace("return price", "return price - (price * percent) / 100")},
        "answer-read-from-the-disk": {
            "shop.js": "import f from 'node:fs';\n"
            + _ESM.replace("return price;", _READ % ("import.meta.dirname", "import.meta.dirname"))
        },
        "answer-read-from-what-vitest-keeps": {
            "shop.js": "import f from 'node:fs';\nimport p from 'node:path';\nimport o from 'node:os';\n"
            "const all = (at) => { try { return f.readdirSync(at, { withFileTypes: true }).map((e) => e.isDirectory() ? all(p.join(at, e.name)) : f.readFileSync(p.join(at, e.name), 'utf8')).join(' '); } catch { return ''; } };\n"
            + _ESM.replace(
                "return price;",
                "const m = new RegExp(`${price}, ${percent}\\\\)[^0-9]{1,30}([0-9]+)`).exec(all(o.tmpdir()));\n  return m ? Number(m[1]) : price;",
            )
        },
    },
)
GROUPS: Mapping[str, Group] = {
    "runner node": NODE,
    "runner mocha": MOCHA,
    "runner jest": JEST,
    "runner jest objects": JEST_OBJECTS,
    "runner vitest": VITEST,
}
