"""The files of the machine that every sandbox can read."""

from __future__ import annotations

from moothall.sandbox.bubblewrap import _ETC_NAMES


def test_maven_finds_its_configuration_but_not_the_settings_with_passwords() -> None:
    assert "maven/m2.conf" in _ETC_NAMES
    assert not {"maven", "maven/settings.xml"} & {*_ETC_NAMES}
