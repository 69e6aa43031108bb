"""What a line of Go, JavaScript or Rust has that reaches for what judges it; see `reach`."""

from __future__ import annotations

import re
from collections.abc import Mapping

_BUILT_IN = r"(?<![.\w$])(?:Object|Function|Array|Promise|Error|String|Number|RegExp|Map|Set|Boolean|Date|Symbol|BigInt|Math|JSON|Reflect|Intl|Buffer)"
"""What scripts find under these names, tests too."""
_PLAIN = r"(?:f32|f64|[iu](?:8|16|32|64|128|size)|bool|char|str|std|core|alloc)"
"""What paths of Rust begin with, tests too."""
PATTERNS: Mapping[str, re.Pattern[str]] = {
    ".go": re.compile(
        r'\bos\.Exit\b|\bsyscall\.|\bruntime\.(?:Goexit|Caller|Callers|Stack)\b|\bdebug\.Stack\b|"testing|\btesting\.|flag\.(?:Lookup|ExitOnError|CommandLine)\b|\bpprof\.Lookup\b|\.Output\(\s*[2-9]'
        r'|go:linkname|"unsafe"|"plugin"|import "C"|=== (?:RUN|PASS|CONT)|--- (?:PASS|FAIL)|"PASS|\bos\.Args\b|\bos\.(?:Stdout|NewFile)\b'
        r"|/proc/self|/dev/(?:fd|std)|MOOTHALL|go:embed\s[^\n]{0,500}?(?:\.go\b|\*(?=[\s\"`']|$)|\*\.\*|[*?\[\\][^\s/]{0,50}g|[?\[\\])"
        r"|^(?:func|var|const|type)\s+(?:nil|true|false|error|len|cap|append|string|u?int(?:8|16|32|64)?|bool|float(?:32|64)|byte|rune|any|copy|delete|m(?:ake|ax|in)|new|panic|recover|clear)\b|^\s+(?:nil|true|false)\s+(?:[\w.*\[\]]+\s*)?=(?!=)"
        r"|(?:&|\b)[a-z]\w*\.(?:EOF|Err[A-Z]\w*)\s*=(?!=)|&[a-z]\w*\.(?:EOF|Err[A-Z]\w*)\b"
        # Imports under another name. After a keyword it is a plain import, or a string.
        r'|(?:^|[;(])\s*(?:import\s*\(?\s*)?(?:\.|(?!(?:import|return|case|_)\b)[^\W\d]\w*)\s+"(?:os|os/exec|syscall|runtime|runtime/debug|golang\.org/x/sys/\w+)"'
    ),
    ".js": re.compile(
        r"\bprocess\.(?:exit|reallyExit|kill|abort|exitCode|binding|dlopen|_\w+|argv|execArgv|mainModule|on(?:ce)?\b)|\brequire\.(?:cache|main|extensions)\b"
        r"|\b_load\b|Module\.prototype|(?:require|from|import)\s*\(?\s*['\"](?:node:)?(?:test|assert|mocha|jest|vitest|chai|ava|tape|inspector|module|repl|domain|vm|fs|child_process|worker_threads)\b"
        r"|prepareStackTrace|captureStackTrace(?!\(this\b)|\.stack\b|AssertionError|\bglobalThis\b|\bglobal\.|\beval\b|(?:(?<![.\w$])|(?<=\.\.\.))arguments\b(?!\s*(?:\.length\b|:))|new Function\b|\bFunction\s*\("
        rf"|{_BUILT_IN}\.prototype\b.*=|=\s*{_BUILT_IN}\.prototype\s*(?:[;,)]|$)|(?:stdout|stderr)\.write\s*=|console\.\w+\s*="
        rf"|{_BUILT_IN}(?:\.\w+|\[[^\]\n]{{1,200}}\])\s*=(?![=>])|\b(?:Object|Reflect)\.(?:assign|set|define\w+|setPrototypeOf)\s*\(\s*{_BUILT_IN}\b"
        r"|=\s*(?:Math|JSON|Reflect|Intl)\s*(?:[;,)]|$)"
        r"|\b(?:process|module|require|globalThis|global)\s*(?:\?\.)?\[|=\s*(?:process|module|require|globalThis|global)\s*(?:[;,)]|$)|\bgetBuiltinModule\b"
        r"|\b(?:require|import)\s*\(\s*(?!['\"`][^'\"`$]*['\"`]\s*[,)])|\bmodule\.(?:require|constructor|children|parent)\b|\.constructor\s*\(|\[\s*['\"`]constructor|constructor\.constructor|\bcreateRequire\b|__proto__"
        r"|[(,\[]\s*(?:process|module|require|globalThis|global)\s*[,)\]](?!\s*=>)|\b(?:window|self)\s*\[|\bframes\s*\[\s*(?!\d)|\{\s*return this\b\s*(?=[;}\n]|$)"
        r"|(?<![.\w$])(?<!function )(?:expect|jest|vi|describe|beforeEach|afterEach|beforeAll|afterAll)\s*[.(\[]|(?<![.\w$])it(?:\s*[(\[]|\.(?:only|skip|each|todo|concurrent)\b)"
        r"|(?:from|import|require)\s*\(?\s*['\"`](?:data|blob|https?):|\bfromCharCode\s*\(\s*\d+\s*,|\batob\s*\(\s*['\"`]|\bBuffer\.from\(\s*['\"`][^'\"`\n]+['\"`]\s*,\s*['\"`](?:hex|base64)"
        r"|\[\s*(?:['\"`][^'\"`\n]*['\"`]\s*,\s*)+['\"`][^'\"`\n]*['\"`]\s*\]\s*\.join\(\s*['\"`]{2}|\bgetPrototypeOf\s*\(\s*(?:async|function|\()"
        r"|\{[^{}]*\b(?:exit|reallyExit|kill|abort|exitCode|binding|dlopen|argv|execArgv|mainModule|once?|getBuiltinModule)\b[^{}]*\}\s*(?:=\s*require\s*\(|from)\s*['\"](?:node:)?process['\"]"
        r"|\b(?:import\s+(?:\*\s+as\s+)?(?!process\b)\w+\s+from\s*|(?:const|let|var)\s+(?!process\b)\w+\s*=\s*require\s*\(\s*)['\"](?:node:)?process['\"]|\brequire\(\s*['\"](?:node:)?process['\"]\s*\)\s*[.\[]"
        r"|\b(?:e|er|err|error|failure|reason|thrown)\.(?:expected|actual)\b|\.(?:generatedMessage|matcherResult)\b|\bcatch\s*\(\s*\{[^{}]{0,200}\b(?:expected|actual|generatedMessage|matcherResult)\b"
        r"|Symbol\.hasInstance|NODE_TEST_CONTEXT|JEST_|MOCHA|MOOTHALL|npm_lifecycle|TAP version|\bnot ok\b|Symbol\.toPrimitive|valueOf"
    ),
    ".rs": re.compile(
        r"\bprocess::(?:exit|abort)\b|\benv::args\b|\bcatch_unwind\b|\bset_hook\b|\bno_mangle\b|\bexport_name\b|extern\s+\"C\"|\bextern\s+fn\b|\blibc::|\basm!|\bctor\b|\bbacktrace\b"
        r"|thread::current|test result|macro_rules!\s*(?:r#)?(?:assert\w*|panic|debug_assert\w*|matches|vec|format\w*|write\w*|concat|stringify|print\w*|line|env)\b|\bcfg!\s*\([^)]*\btest\b|#!?\[cfg(?:_attr)?\((?:[^\]]{0,2000}\btest\b|[^\]]{2000})"
        r"|\bCommandExt\b|\bNEXTEST_|link_section|/proc/self|MOOTHALL|set_output_capture|macro_rules!\s*\$|!\s*[({\[]\s*(?:assert\w*|panic)\s*[,)}\]]|\bas\s+(?:r#)?(?:assert\w*|panic|matches)\b"
        rf"|\b(?:mod|struct|enum|union|type|trait)\s+{_PLAIN}\b|\buse\b(?:[^;\n]{{0,2000}}\bas\s+{_PLAIN}\s*[;,}}]|[^;\n]{{2000}})|\bextern\s*(?:\"\w+\"\s*)?\{{"
        r"|\b(?:fn|struct|enum|const|static|type|trait)\s+(?:Some|None|Ok|Err|Vec|String|Box)\b"
        r"|\bprocess\s+as\b|\bprocess::\*|\bprocess::\{[^}]{0,500}\b(?:exit|abort|self\s+as)\b|\binclude(?:_str|_bytes)?!\s*\(\s*(?!\"[^\"]*\"\s*\))|\binclude(?:_str|_bytes)?!\s*\([^)]*\.rs\"|\bfile!\s*\(|\"(?:\./)?(?:src|tests)/|CARGO_MANIFEST_DIR"
    ),
}
"""By ending. What may be long is bounded, or a patch could hold its reading up; what is longer is shown."""
