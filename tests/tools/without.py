"""Run a program on a kernel that lacks a feature: `python without.py FEATURE… -- PROGRAM…`.

A filter of system calls, installed before the program starts, makes the kernel answer like one that
was built without the feature.
"""

from __future__ import annotations

import errno
import os
import sys

import pyseccomp

_CLONE_NEWUSER = 0x10000000
_PR_SET_SECCOMP = 22


def main() -> None:
    """Remove the features, and become the program."""
    split = sys.argv.index("--")
    rules, no_such_call = pyseccomp.SyscallFilter(pyseccomp.ALLOW), pyseccomp.ERRNO(errno.ENOSYS)
    refused = pyseccomp.ERRNO(errno.EPERM)
    for feature in sys.argv[1:split]:
        match feature:
            case "landlock":
                rules.add_rule(no_such_call, "landlock_create_ruleset")
            case "user-namespaces":
                for name in ("clone", "unshare"):
                    rules.add_rule(
                        refused,
                        name,
                        pyseccomp.Arg(0, pyseccomp.MASKED_EQ, _CLONE_NEWUSER, _CLONE_NEWUSER),
                    )
                rules.add_rule(no_such_call, "clone3")
            case "seccomp":
                rules.add_rule(no_such_call, "seccomp")
                rules.add_rule(
                    pyseccomp.ERRNO(errno.EINVAL),
                    "prctl",
                    pyseccomp.Arg(0, pyseccomp.EQ, _PR_SET_SECCOMP),
                )
            case _:
                sys.exit(f"{feature} cannot be removed")
    rules.load()
    os.execvp(sys.argv[split + 1], sys.argv[split + 1 :])  # noqa: S606 - no shell is intended


if __name__ == "__main__":
    main()
