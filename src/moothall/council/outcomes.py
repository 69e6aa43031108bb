"""What runs candidates' code on inputs, inside: blocks of Python for the workspace, each of whose value is a list of outcomes.

Given `asked` (path, name, arguments and steps each), `seconds` of computing for each call, and `chars` of each outcome.
"""

from __future__ import annotations

from typing import Final

PYTHON: Final = """
import ast, asyncio, contextlib, importlib, inspect, io, itertools, os, re, signal, sys

class Late(BaseException):
    pass

def late(*_):
    raise Late

def limit(seconds):
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 10 * seconds)

def load(path):
    *folder, file = path.split("/")
    at = len(folder)
    while at and os.path.exists("/".join([*folder[:at], "__init__.py"])):
        at -= 1
    sys.path[:0] = ["/".join(folder[:at]) or ".", "."]
    return importlib.import_module(".".join([*folder[at:], file.removesuffix(".py")]).removesuffix(".__init__"))

def spell(value):
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(spell, value))) + "}"
    if hasattr(value, "__next__"):
        return spell(list(itertools.islice(value, 1000)))
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))

async def waited(value):
    if hasattr(value, "__anext__"):
        return [item async for item in first(value)]
    return await value

async def first(value):
    for _ in range(1000):
        try:
            yield await value.__anext__()
        except StopAsyncIteration:
            return

def settled(value):
    waits = inspect.isawaitable(value) or hasattr(value, "__anext__")
    return asyncio.run(waited(value)) if waits else value

def steps(made, then):
    if not then:
        yield spell(made)
    for name, given, named in then:
        step = getattr(made, name)
        yield spell(step if given is None else settled(step(*given, **named)))

def outcome(function, arguments, then):
    given, named = ast.literal_eval(arguments)
    said = []
    limit(seconds)
    try:
        for value in steps(settled(function(*given, **named)), ast.literal_eval(then)):
            said.append("returns " + value)
        if repr((given, named)) != arguments:
            said[-1] += " and makes its arguments " + repr((*given, *named.values()))
    except Late:
        said.append("comes to no end")
    except BaseException as error:
        said.append("raises " + type(error).__name__)
    finally:
        limit(0)
    return ", then ".join(said)[:chars]

signal.signal(signal.SIGPROF, late)
signal.signal(signal.SIGALRM, late)
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    modules = {path: load(path) for path in dict.fromkeys(path for path, *_ in asked)}
    outcomes = [outcome(getattr(modules[path], name), *given) for path, name, *given in asked]
outcomes
"""

NODE: Final = r"""
import ast, json, subprocess

SCRIPT = '''
const fs = require("fs"), vm = require("vm"), path = require("path");
const { inspect } = require("util"), { pathToFileURL } = require("url");
const write = fs.writeSync, stop = process.exit.bind(process), later = setTimeout, dump = JSON.stringify, race = Promise.race.bind(Promise);
const { asked, seconds, chars } = JSON.parse(fs.readFileSync(0, "utf8"));
const spell = (value) => inspect(value, { depth: 8, sorted: true, breakLength: Infinity, maxArrayLength: 200, maxStringLength: chars });
async function load(file) {
  try { return require(file); } catch (error) {
    if (!["ERR_REQUIRE_ESM", "ERR_UNKNOWN_FILE_EXTENSION"].includes(error.code) && !(error instanceof SyntaxError)) throw error;
    return import(pathToFileURL(file).href);
  }
}
function find(module, name) {
  for (const place of [module, module && module.default])
    for (const value of [place && place[name], place])
      if (typeof value === "function" && (value === (place && place[name]) || value.name === name)) return value;
  return undefined;
}
async function outcome(call, given) {
  const before = spell(given);
  let said;
  try {
    globalThis.__call = () => call(...given);
    const value = vm.runInThisContext("__call()", { timeout: seconds * 10000 });
    const late = new Promise((_, no) => later(() => no({ code: "ERR_SCRIPT_EXECUTION_TIMEOUT" }), seconds * 10000).unref());
    said = "returns " + spell(await race([value, late]));
    if (spell(given) !== before) said += " and makes its arguments " + spell(given);
  } catch (error) {
    if (error && error.code === "ERR_SCRIPT_EXECUTION_TIMEOUT") said = "comes to no end";
    else said = "raises " + ((error && error.constructor && error.constructor.name) || "nothing");
  }
  return said.slice(0, chars);
}
(async () => {
  const modules = {}, found = [];
  for (const [file] of asked) modules[file] = modules[file] || await load(path.resolve(file));
  for (const [file, name, given] of asked) {
    const call = find(modules[file], name);
    found.push(call ? await outcome(call, given) : "raises ReferenceError");
  }
  write(1, "\\n" + dump(found) + "\\n");
  stop(0);
})().catch(() => stop(1));
'''
told = {"asked": [[path, name, list(ast.literal_eval(given)[0])] for path, name, given, _ in asked], "seconds": seconds, "chars": chars}
ran = subprocess.run(["node", "-e", SCRIPT], input=json.dumps(told), capture_output=True, text=True, errors="replace")
json.loads(ran.stdout.strip().rpartition("\n")[2]) if not ran.returncode else ran.stderr[-400:]
"""

GO: Final = r"""
import ast, collections, json, os, re, subprocess

HEAD = '''package PACKAGE

import (
	moothallJSON "encoding/json"
	moothallFmt "fmt"
	moothallOS "os"
	moothallRegexp "regexp"
	moothallTesting "testing"
	moothallTime "time"
)

func moothallSpell(values ...interface{}) (said string) {
	for at, value := range values {
		if at > 0 {
			said += ", "
		}
		if failed, ok := value.(error); ok {
			said += moothallFmt.Sprintf("error %q", failed.Error())
		} else {
			said += moothallFmt.Sprintf("%#v", value)
		}
	}
	return moothallRegexp.MustCompile("0x[0-9a-f]{6,}").ReplaceAllString(said, "0x")
}

func moothallOutcome(call func() string) string {
	done := make(chan string, 1)
	go func() {
		said := "raises panic"
		defer func() { recover(); done <- said }()
		said = call()
	}()
	select {
	case said := <-done:
		return said
	case <-moothallTime.After(LATE * moothallTime.Millisecond):
		return "comes to no end"
	}
}

func TestMoothallInputs(t *moothallTesting.T) {
	found := []string{}
'''
CALL = '''	found = append(found, moothallOutcome(func() string {
		DECLARED
		before, said := moothallSpell(NAMES), "returns "
		RAN
		if after := moothallSpell(NAMES); after != before {
			said += " and makes its arguments " + after
		}
		return said
	}))
'''
TAIL = '''	data, _ := moothallJSON.Marshal(found)
	_ = moothallOS.WriteFile(OUT, data, 0o600)
}
'''
places = collections.defaultdict(list)
for at, (path, *_) in enumerate(asked):
    places[os.path.dirname(path)].append(at)
found = {}
for folder, mine in places.items():
    with open(asked[mine[0]][0], encoding="utf-8") as file:
        package = re.search(r"(?m)^package +(\w+)", file.read())[1]
    out = f"/tmp/moothall-inputs-{mine[0]}.json"
    text = HEAD.replace("PACKAGE", package).replace("LATE", str(round(10000 * seconds)))
    for at in mine:
        _, name, arguments, _ = asked[at]
        given, said = ast.literal_eval(arguments)
        names = ", ".join(f"a{number}" for number in range(len(given)))
        call = f"said += moothallSpell({name}({names}))" if said["returns"] else f"{name}({names})"
        declared = "; ".join(f"var a{number} {kind} = {value}" for number, (kind, value) in enumerate(zip(said["types"], given)))
        text += CALL.replace("DECLARED", declared).replace("NAMES", names).replace("RAN", call)
    test = os.path.join(folder, "moothall_inputs_test.go")
    with open(test, "w", encoding="utf-8") as file:
        file.write(text + TAIL.replace("OUT", json.dumps(out)))
    if os.path.exists(out):
        os.unlink(out)
    argv = ["go", "test", "-vet=off", "-count=1", "-run=^TestMoothallInputs$", "./" + folder]
    ran = subprocess.run(argv, capture_output=True, text=True, errors="replace")
    os.unlink(test)
    if os.path.exists(out):
        with open(out, encoding="utf-8") as file:
            found.update(zip(mine, json.load(file)))
[found[at][:chars] for at in range(len(asked))] if len(found) == len(asked) else (ran.stdout + ran.stderr)[-400:]
"""
