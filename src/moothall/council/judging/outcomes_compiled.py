"""What runs candidates' code on inputs where a compiler has to, inside: see `outcomes`. A file of ours is put beside the code, or behind it."""

from __future__ import annotations

from typing import Final

GO: Final = r"""
import ast, collections, json, os, re, subprocess

HEAD = '''package PACKAGE

import (
	moothallJSON "encoding/json"
	moothallFmt "fmt"
	moothallOS "os"
	moothallRegexp "regexp"
	moothallStrings "strings"
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

var _ = moothallStrings.Join

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
STEPS = '''	found = append(found, moothallOutcome(func() string {
		MADE
		said := []string{}
		STEPS
		return moothallStrings.Join(said, ", then ")
	}))
'''
TAIL = '''	data, _ := moothallJSON.Marshal(found)
	_ = moothallOS.WriteFile(OUT, data, 0o600)
}
'''

def made_of(made, unsure):
    return f"it, failed := {made}; if failed != nil {{ return moothallSpell(failed) }}" if unsure else f"it := {made}"

def step_of(call, told):
    return f'said = append(said, "returns " + moothallSpell(it.{call}))' if told else f'it.{call}; said = append(said, "returns nothing")'

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
        _, name, arguments, then = asked[at]
        given, said = ast.literal_eval(arguments)
        if steps := ast.literal_eval(then):
            text += STEPS.replace("MADE", made_of(given, said)).replace("STEPS", "; ".join(step_of(*step) for step in steps))
            continue
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

RUST: Final = r"""
import ast, collections, json, os, subprocess

HEAD = '''
#[cfg(test)]
#[allow(warnings, clippy::all)]
mod moothall_inputs {
    extern crate std;
    use super::*;

    struct Told<T>(T);
    trait Told1 { fn told(&self) -> std::string::String; }
    trait Told2 { fn told(&self) -> std::string::String; }
    impl<T: std::fmt::Debug> Told1 for &Told<T> { fn told(&self) -> std::string::String { std::format!("{:?}", self.0) } }
    impl<T> Told2 for Told<T> { fn told(&self) -> std::string::String { std::string::String::from("something") } }

    fn outcome(call: fn() -> std::string::String) -> std::string::String {
        let (to, from) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let said = std::panic::catch_unwind(call);
            let _ = to.send(said.unwrap_or_else(|_| std::string::String::from("raises panic")));
        });
        let late = std::time::Duration::from_millis(LATE);
        from.recv_timeout(late).unwrap_or_else(|_| std::string::String::from("comes to no end"))
    }

    #[test]
    fn moothall_outcomes() {
        std::panic::set_hook(std::boxed::Box::new(|_| {}));
        let calls: &[fn() -> std::string::String] = &[
'''
CALL = '''            || {
                DECLARED
                let mut said = std::format!("returns {}", (&&Told(NAME(GIVEN))).told());
                CHANGED
                said
            },
'''
TAIL = '''        ];
        let said: std::vec::Vec<_> = calls.iter().map(|call| outcome(*call)).collect();
        std::fs::write("OUT", said.join("\\u{0}")).unwrap();
        std::process::exit(0);
    }
}
'''

def root_of(path):
    while path and not os.path.exists(os.path.join(path := os.path.dirname(path), "Cargo.toml")):
        pass
    return path or "."

places = collections.defaultdict(list)
for at, (path, *_) in enumerate(asked):
    places[path].append(at)
found, ran = {}, None
for path, mine in places.items():
    out = f"/tmp/moothall-inputs-{mine[0]}.txt"
    text = HEAD.replace("LATE", str(round(10000 * seconds)))
    for at in mine:
        _, name, arguments, _ = asked[at]
        given = ast.literal_eval(arguments)
        declared = " ".join(f"let mut a{number}: {kind} = {value};" for number, (_, kind, value) in enumerate(given))
        changed = "".join(
            f'if a{number} != {value} {{ said += &std::format!(" and makes its arguments {{:?}}", a{number}); }}'
            for number, (by, _, value) in enumerate(given) if by == "&mut "
        )
        names = ", ".join(f"{by}a{number}" for number, (by, *_) in enumerate(given))
        text += CALL.replace("DECLARED", declared).replace("NAME", name).replace("GIVEN", names).replace("CHANGED", changed)
    if os.path.exists(out):
        os.unlink(out)
    with open(path, encoding="utf-8") as file:
        was = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(was + text + TAIL.replace("OUT", out))
    argv = ["cargo", "test", "--tests", "--quiet", "moothall_outcomes"]
    ran = subprocess.run(argv, cwd=root_of(path), capture_output=True, text=True, errors="replace")
    with open(path, "w", encoding="utf-8") as file:
        file.write(was)
    if os.path.exists(out):
        with open(out, encoding="utf-8") as file:
            found.update(zip(mine, file.read().split("\0")))
[found[at][:chars] for at in range(len(asked))] if len(found) == len(asked) else (ran.stdout + ran.stderr)[-400:]
"""
