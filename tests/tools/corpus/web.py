"""Local addresses in disguise, redirects to them, and oversized responses."""

from __future__ import annotations

from corpus.attempt import PORT, SITE, Attempt

_NO = ("blocked", "invalid", "error")
_WORDS = (
    "not a public address|not called|no URL|not a URL|not an http|cannot be reached|at least "
    "8|a{300}|redirects|user or password|URL"
)

_SPELLINGS = (
    f"http://127.0.0.1:{PORT}/",
    f"http://localhost:{PORT}/",
    f"http://LOCALHOST.:{PORT}/",
    f"http://2130706433:{PORT}/",
    f"http://0x7f000001:{PORT}/",
    f"http://017700000001:{PORT}/",
    f"http://0177.0.0.1:{PORT}/",
    f"http://127.1:{PORT}/",
    f"http://127.0.0.1.:{PORT}/",
    f"http://0:{PORT}/",
    f"http://0.0.0.0:{PORT}/",
    f"http://127.255.255.254:{PORT}/",
    f"http://[::1]:{PORT}/",
    f"http://[::]:{PORT}/",
    f"http://[::ffff:127.0.0.1]:{PORT}/",
    f"http://[::ffff:7f00:1]:{PORT}/",
    f"http://[0:0:0:0:0:ffff:127.0.0.1]:{PORT}/",
    f"http://[::127.0.0.1]:{PORT}/",
    f"http://[64:ff9b::7f00:1]:{PORT}/",
    f"http://[2002:7f00:1::]:{PORT}/",
    f"http://[fe80::1%25lo]:{PORT}/",
    "http://\uff11\uff12\uff17.0.0.1:" + PORT + "/",
    "http://\u2460\u2461\u2466.\u24ea.\u24ea.\u2460:" + PORT + "/",
    "http://127\u30020\u30020\u30021:" + PORT + "/",
    f"http://user@127.0.0.1:{PORT}/",
    f"http://example.org@127.0.0.1:{PORT}/",
    f"http://127.0.0.1:{PORT}#@example.org/",
    f"http://127.0.0.1:{PORT}\\@example.org/",
    f"http://example.org:80@127.0.0.1:{PORT}/",
    "http://169.254.169.254/latest/meta-data/",
    "http://[fd00:ec2::254]/latest/meta-data/",
    "http://metadata.google.internal/computeMetadata/v1/",
    "http://100.100.100.200/latest/meta-data/",
    "http://192.168.0.1/",
    "http://10.0.0.1/",
    "http://100.64.0.1/",
    "http://224.0.0.1/",
    "http://255.255.255.255/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:" + PORT + "/_x",
    "ftp://127.0.0.1:" + PORT + "/",
    "javascript:alert(1)",
    "http:///etc/passwd",
    "http://",
    "//127.0.0.1:" + PORT + "/",
    f"http://127.0.0.1:{PORT}/\r\nHost: x",
    "unix:///run/docker.sock",
    "http://a" + "a" * 900 + ".org/",
)
_TARGETS = (
    f"http://127.0.0.1:{PORT}/",
    f"http://localhost:{PORT}/",
    f"//127.1:{PORT}/",
    f"http://[::ffff:127.0.0.1]:{PORT}/",
    "http://169.254.169.254/latest/meta-data/",
    "file:///etc/passwd",
    f"gopher://127.0.0.1:{PORT}/",
    f"http://x:y@127.0.0.1:{PORT}/",
)

ATTEMPTS = (
    *(
        Attempt(f"fetch-{n}", "web.fetch", {"url": url}, _NO, _WORDS)
        for n, url in enumerate(_SPELLINGS, 1)
    ),
    *(
        Attempt(
            f"redirect-{n}",
            tool,
            {"url": f"http://{SITE}/to/{code}?where={target}", **fields},
            _NO,
            "redirects|not a public|user or|canonical",
        )
        for n, (target, (tool, code, fields)) in enumerate(
            zip(
                _TARGETS,
                (
                    ("web.fetch", 302, {}),
                    ("http.get", 301, {}),
                    ("http.post", 307, {"body": "x"}),
                    ("http.head", 308, {}),
                    ("http.download", 302, {"path": "x"}),
                    ("web.fetch", 303, {}),
                    ("http.delete", 308, {}),
                    ("http.upload", 307, {"path": "README.md"}),
                ),
                strict=True,
            ),
            1,
        )
    ),
    Attempt(
        "bomb-gzip",
        "web.fetch",
        {"url": f"http://{SITE}/bomb/gzip"},
        ("success",),
        '"truncated": true',
    ),
    Attempt(
        "bomb-deflate",
        "web.fetch",
        {"url": f"http://{SITE}/bomb/deflate"},
        ("success",),
        '"truncated": true',
    ),
    Attempt(
        "bomb-in-a-bomb",
        "web.fetch",
        {"url": f"http://{SITE}/bomb/twice"},
        ("success", "error"),
        "",
    ),
    Attempt(
        "bomb-downloaded",
        "http.download",
        {"url": f"http://{SITE}/bomb/gzip", "path": "x"},
        ("error",),
        "more than",
    ),
    Attempt(
        "page-without-end",
        "web.fetch",
        {"url": f"http://{SITE}/endless"},
        ("success",),
        '"truncated": true',
    ),
    Attempt(
        "page-that-drips",
        "web.fetch",
        {"url": f"http://{SITE}/drip"},
        ("timeout",),
        "no complete answer",
    ),
    Attempt(
        "page-of-deep-tags", "web.fetch", {"url": f"http://{SITE}/deep/html"}, ("success",), ""
    ),
    Attempt(
        "page-of-deep-json", "web.fetch", {"url": f"http://{SITE}/deep/json"}, ("success",), ""
    ),
    Attempt(
        "download-through-a-link",
        "http.download",
        {"url": f"http://{SITE}/page", "path": "link/x"},
        _NO,
        "leads out",
        first="ln -s /tmp link",
    ),
    Attempt(
        "download-up",
        "http.download",
        {"url": f"http://{SITE}/page", "path": "../x"},
        _NO,
        "leaves",
    ),
    Attempt(
        "upload-of-a-link",
        "http.upload",
        {"url": f"http://{SITE}/page", "path": "link"},
        _NO,
        "leads out",
        first="ln -s @OUTSIDE@ link",
    ),
    Attempt(
        "upload-from-proc",
        "http.upload",
        {"url": f"http://{SITE}/page", "path": "link"},
        _NO,
        "leads out",
        first="ln -s /proc/self/environ link",
    ),
    Attempt(
        "headers-that-split",
        "http.get",
        {"url": f"http://{SITE}/page", "headers": {"X": "a\r\nHost: evil"}},
        _NO,
        "",
    ),
    Attempt(
        "headers-of-the-hop",
        "http.get",
        {"url": f"http://{SITE}/page", "headers": {"Host": "127.0.0.1:@PORT@"}},
        ("success", *_NO),
        "",
    ),
    Attempt(
        "search-engine-named-by-the-caller",
        "web.search",
        {"query": "x", "engines": ["http://127.0.0.1:@PORT@"]},
        _NO,
        "",
    ),
)
