from __future__ import annotations

import pytest

from moothall.ranking.diffs import restore_base_tests

CODE = "pub fn sum<'a>(a: &'a u8) -> u8 { *a }\n"


@pytest.mark.parametrize(
    "tests",
    [
        "#[cfg(test)]\nmod tests {\n    #[test]\n    fn one() { assert_eq!(1, 1); }\n}\n",
        (
            '#[cfg(all(test, not(feature = "slow")))]\nmod tests {\n    #[test]\n    fn one() { '
            "assert_eq!(1, 1); }\n}\n"
        ),
        "#[test]\nfn one() {\n    assert_eq!(1, 1);\n}\n",
        (
            "#[tokio::test]\n#[ignore] // later\npub async fn one() -> Result<(), ()> {\n    "
            "assert_eq!(1, 1);\n    Ok(())\n}\n"
        ),
        "#[cfg(test)]\nmacro_rules! same { ($a:expr) => { assert_eq!($a, 1) } }\n",
        "#[cfg(test)]\nimpl Sum { fn one() { assert_eq!(1, 1) } }\n",
    ],
)
def test_test_only_code_is_restored_from_the_base(tests: str) -> None:
    base, forged = f"{CODE}{tests}", f"{CODE}// more\n{tests.replace('1)', '2)')}"
    assert forged != base
    assert restore_base_tests(forged, base) == f"{CODE}// more\n{tests}"
    assert restore_base_tests(CODE, base) == f"{CODE}\n{tests}"


def test_code_excluded_from_tests_counts_as_code() -> None:
    base = f"{CODE}#[cfg(not(test))]\nmod real {{ pub fn a() {{}} }}\n#[test]\nfn one() {{}}\n"
    mended = base.replace("pub fn a() {}", "pub fn a() { b() }")
    assert restore_base_tests(mended, base) == mended


def test_new_tests_are_removed_and_a_file_without_tests_is_unchanged() -> None:
    base = f"{CODE}#[cfg(test)]\nmod tests {{ #[test] fn one() {{}} }}\n"
    extended = f"{base}#[cfg(test)]\nmod others;\n#[test]\nfn two() {{}}\n"
    assert restore_base_tests(extended, base).rstrip() == base.rstrip()
    assert restore_base_tests(extended, CODE) == extended


@pytest.mark.parametrize(
    "code",
    [
        "/// #[test]\n/// fn foo() {}\npub fn real(x: u32) -> u32 { x + 1 }\n",
        '#[cfg(any(test, feature = "alloc"))]\nimpl A { fn x() -> u32 { 1 + 1 } }\n',
        '#[cfg(not(any(test, feature = "mock")))]\npub fn now() -> u32 { 1 + 1 }\n',
        '#[cfg(feature = "test-utils")]\npub fn now() -> u32 { 1 + 1 }\n',
    ],
)
def test_code_not_limited_to_tests_is_kept_as_the_change_has_it(code: str) -> None:
    assert restore_base_tests(code.replace("+", "-"), code) == code.replace("+", "-")


def test_an_array_type_does_not_end_a_test() -> None:
    base = "fn a() {}\n#[cfg(test)]\nfn help() -> [u8; 3] { [1, 1, 1] }\n"
    assert restore_base_tests(base.replace("[1, 1", "[2, 1"), base) == base


def test_many_unterminated_tests_are_read_in_one_pass() -> None:
    assert restore_base_tests("#[test] fn a() {\n" * 20_000, "#[test] fn a() {}")
