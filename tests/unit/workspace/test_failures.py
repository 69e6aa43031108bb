from __future__ import annotations

from moothall.workspace.environments import excerpt, explain, find_failure_line

PIP = (
    """Obtaining file:///workspace
  Preparing editable metadata (pyproject.toml): started
  error: subprocess-exited-with-error

  \u00d7 Preparing editable metadata (pyproject.toml) did not run successfully.
  │ exit code: 1
  ╰─> [120 lines of output]
      Traceback (most recent call last):
        File "/tmp/x/setuptools_scm/git.py", line 1, in <module>
      LookupError: setuptools-scm was unable to detect version for /workspace.
"""
    + "".join(f"      line {number}\n" for number in range(120))
    + """      [end of output]

  note: This error originates from a subprocess, and is likely not a problem with pip.
error: metadata-generation-failed
"""
)


def test_the_error_that_pip_wraps_is_found() -> None:
    assert (
        find_failure_line(PIP)
        == "LookupError: setuptools-scm was unable to detect version for /workspace."
    )
    assert "LookupError: setuptools-scm" in excerpt(PIP)
    assert excerpt(PIP).endswith("error: metadata-generation-failed")
    assert len(excerpt(PIP).splitlines()) < 45


def test_a_package_missing_from_the_index_is_a_failure_line() -> None:
    text = (
        "ERROR: Could not find a version that satisfies the requirement nope==9\nERROR: No "
        "matching distribution found for nope==9\n"
    )
    assert "nope==9" in find_failure_line(text)
    assert find_failure_line("all is well\n") == ""


def test_the_failure_line_of_yarn_precedes_its_summary() -> None:
    first_lines = (
        "➤ YN0000: ┌ Post-resolution validation\n➤ YN0028: │ The lockfile would have been "
        "modified, which is explicitly forbidden.\n"
    )
    assert "YN0028" in find_failure_line(
        f"{first_lines}➤ YN0000: └ Completed\n➤ YN0000: · Failed with errors in 0s 104ms\n"
    )


def test_the_counts_of_passing_maven_tests_are_no_failure() -> None:
    passed = "[INFO] Tests run: 11, Failures: 0, Errors: 0, Skipped: 0 -- in org.shop.PriceTest"
    failed = "[ERROR] Failed to execute goal compile: cannot find symbol"
    assert find_failure_line(f"{passed}\n") == ""
    assert find_failure_line(f"{passed}\n{failed}\n") == failed


def test_a_warning_of_pnpm_is_not_the_cause() -> None:
    warning = '[WARN] The metadata of @oxc/core is missing the "time" field'
    error = "[ERR_PNPM_FETCH_404] GET https://registry.npmjs.org/@oxc/core: Not Found - 404"
    assert find_failure_line(f"{warning}\n{error}\n") == error


def test_the_text_says_what_to_write_where_and_is_bounded() -> None:
    explanation = explain(
        ("pip", "install", "."),
        "exit code 1",
        "x" * 1_000_000 + "\nerror: y\n" * 5000,
        earlier_failure="The other.\n",
    )
    assert ".moothall.toml" in explanation
    assert "--setup" in explanation
    assert "\nThe other.\nConfigure the commands" in explanation
    assert len(explanation) < 10_000
