from __future__ import annotations

from pathlib import Path

from moothall.sandbox_runtime.processes import Contention


def test_contended_time_is_read_from_the_kernel(tmp_path: Path) -> None:
    file = tmp_path / "cpu"
    file.write_text(
        "some avg10=1.00 avg60=1.00 avg300=1.00 total=5000000\nfull avg10=0.00 total=0\n",
        encoding="ascii",
    )
    contention = Contention(str(file))
    assert contention.seconds() == 0
    file.write_text("some avg10=1.00 avg60=1.00 avg300=1.00 total=5000001\n", encoding="ascii")
    assert 0 < contention.seconds() <= 0.00001
    file.write_text("some total=9999999999999\n", encoding="ascii")  # never more than has passed
    assert contention.seconds() < 60


def test_without_pressure_data_the_load_is_used(tmp_path: Path) -> None:
    assert 0 <= Contention(str(tmp_path / "nothing")).seconds() < 60
