from __future__ import annotations

from pathlib import Path

from moothall.sandbox_runtime.check_run import data_of_tests


def test_changes_of_test_data_are_detected_by_modification_time(tmp_path: Path) -> None:
    names = (
        "tests/data/a.json",
        "shop/testdata/b.txt",
        "tests/test_a.py",
        "shop/c.json",
        "node_modules/x/test/d.json",
        "tests/.e/f",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1", encoding="utf-8")
    times_before = data_of_tests(str(tmp_path))
    assert {str(Path(path).relative_to(tmp_path)) for path in times_before} == {
        "tests/data/a.json",
        "shop/testdata/b.txt",
    }
    (tmp_path / names[0]).write_text("2", encoding="utf-8")
    (tmp_path / names[1]).unlink()
    times_after = data_of_tests(str(tmp_path))
    assert str(tmp_path / names[1]) not in times_after
    assert times_after[str(tmp_path / names[0])] > times_before[str(tmp_path / names[0])]
