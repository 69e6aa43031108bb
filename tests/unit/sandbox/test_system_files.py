"""The files of the machine that every sandbox can read."""

from __future__ import annotations

from pathlib import Path

import pytest

from moothall.sandbox.bubblewrap import _system_arguments


@pytest.mark.skipif(not Path("/etc/maven/m2.conf").exists(), reason="needs Maven of Debian")
def test_maven_finds_its_configuration_but_not_the_settings_with_passwords() -> None:
    arguments = _system_arguments()
    assert "/etc/maven/m2.conf" in arguments
    assert not {"/etc/maven", "/etc/maven/settings.xml"} & {*arguments}
