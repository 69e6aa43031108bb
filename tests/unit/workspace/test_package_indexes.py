from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.errors import ConfigurationError
from moothall.workspace.setup_network import Indexes, basic, read_indexes

SECRET = "secret-of-the-operator"


def visible_data(indexes: Indexes) -> str:
    return repr(
        (indexes.variables, indexes.files, indexes.urls, indexes.paths, indexes.certificates)
    )


def test_pips_environment_overrides_its_files_and_passwords_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").write_text(
        f"[global]\nindex-url = https://me:{SECRET}%40x@a.example/simple\nextra-index-url =\n    "
        "http://b.example:81/s\n    https://c.example/s\n"
        f"proxy = http://me:{SECRET}@proxy.example\n[install]\nno-binary = :none:\n"
    )
    indexes = read_indexes(
        {
            "PIP_EXTRA_INDEX_URL": "https://d.example/s",
            "PIP_PROXY": SECRET,
            "PIP_CLIENT_CERT": SECRET,
        },
        tmp_path,
        tmp_path,
    )
    assert indexes.variables == {
        "PIP_INDEX_URL": "https://a.example/simple",
        "PIP_EXTRA_INDEX_URL": "https://d.example/s",
        "PIP_NO_BINARY": ":none:",
    }
    assert indexes.urls == ["https://d.example/s", "https://a.example/simple"]
    assert indexes.credentials == [("https://a.example/", basic("me", f"{SECRET}@x"))]
    assert SECRET not in visible_data(indexes)


def test_uv_credentials_belong_to_named_indexes(tmp_path: Path) -> None:
    (tmp_path / "uv.toml").write_text(
        'cache-dir = "/x"\n[[index]]\nname = "my-team"\nurl = "https://u.example/simple"\n'
        '[[index]]\nurl = "https://all.example/simple"\ndefault = true\n'
    )
    environ = {
        "UV_CONFIG_FILE": str(tmp_path / "uv.toml"),
        "UV_INDEX_MY_TEAM_USERNAME": "me",
        "UV_INDEX_MY_TEAM_PASSWORD": SECRET,
        "UV_PUBLISH_TOKEN": SECRET,
    }
    indexes = read_indexes(environ, tmp_path, tmp_path)
    assert indexes.variables == {
        "UV_INDEX": "my-team=https://u.example/simple",
        "UV_DEFAULT_INDEX": "https://all.example/simple",
    }
    assert indexes.credentials == [("https://u.example/", basic("me", SECRET))]
    assert SECRET not in visible_data(indexes)


def test_npm_tokens_apply_below_their_path(tmp_path: Path) -> None:
    (tmp_path / ".npmrc").write_text(
        "; a comment\nregistry=https://r.example/npm/\n@acme:registry = "
        "https://acme.example/npm/\n//r.example/npm/:_authToken=${TOKEN}\n"
        "//acme.example/npm/:username=me\n"
        f"//acme.example/npm/:_password={base64.b64encode(SECRET.encode()).decode()}\n"
        f"//else.example/:_auth={SECRET}\n//r.example/npm/:always-auth=true\n_authToken={SECRET}\n"
    )
    indexes = read_indexes({"TOKEN": SECRET}, tmp_path, tmp_path)
    assert indexes.files == {
        "NPM_CONFIG_USERCONFIG": (
            "registry=https://r.example/npm/\n@acme:registry=https://acme.example/npm/\n"
        ),
    }
    assert sorted(indexes.credentials) == [
        ("https://acme.example/npm/", basic("me", SECRET)),
        ("https://else.example/", f"Basic {SECRET}"),
        ("https://r.example/npm/", f"Bearer {SECRET}"),
        ("https://r.example/npm/", f"Bearer {SECRET}"),
    ]
    assert SECRET not in visible_data(indexes)


def test_go_cargo_and_netrc_credentials_are_read(tmp_path: Path) -> None:
    (tmp_path / ".config/go").mkdir(parents=True)
    (tmp_path / ".config/go/env").write_text(
        f"GOPROXY=https://go.example,https://me:{SECRET}@other.example/p|direct\nGOFLAGS=-x\n"
    )
    (tmp_path / ".cargo").mkdir()
    (tmp_path / ".cargo/config.toml").write_text(
        '[registries.my-team]\nindex = "sparse+https://crates.example/index/"\n'
    )
    (tmp_path / ".netrc").write_text(
        f"machine go.example login me password {SECRET}\nmachine unknown.example login a password "
        "b\n"
    )
    indexes = read_indexes({}, tmp_path, tmp_path)
    assert indexes.variables == {
        "GOPROXY": "https://go.example,https://other.example/p|direct",
        "CARGO_REGISTRIES_MY_TEAM_INDEX": "sparse+https://crates.example/index/",
    }
    assert indexes.urls == [
        "https://go.example",
        "https://other.example/p",
        "https://crates.example/index/",
    ]
    assert dict(indexes.credentials) == {
        "https://other.example/": basic("me", SECRET),
        "https://go.example/": basic("me", SECRET),
    }


def test_local_wheels_and_certificates_are_found(tmp_path: Path) -> None:
    wheels, authority = tmp_path / "wheels", tmp_path / "ca.pem"
    wheels.mkdir()
    authority.write_text("x")
    indexes = read_indexes(
        {"PIP_FIND_LINKS": f"file://{wheels} /no/such", "PIP_CERT": str(authority)},
        tmp_path,
        tmp_path,
    )
    assert (indexes.paths, indexes.certificates) == ([wheels], [authority])
    assert "PIP_CERT" not in indexes.variables


@pytest.mark.parametrize(("name", "text"), [("pip.conf", "index-url = x"), ("pip.conf", b"\xff")])
def test_an_unreadable_file_is_named(name: str, text: str | bytes, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigurationError, match=str(file)):
        read_indexes({"PIP_CONFIG_FILE": str(file)}, tmp_path)


@given(
    st.text(
        st.characters(
            codec="ascii", exclude_categories=["C", "Z"], exclude_characters="/?#[]\\|,;\"'@%"
        ),
        min_size=8,
    )
)
def test_the_password_of_a_url_is_never_shown(password: str) -> None:
    url = f"https://me:{password}@host.example/simple"
    indexes = read_indexes(
        {"PIP_INDEX_URL": url, "UV_INDEX": f"a={url} {url}", "GOPROXY": f"{url},direct"},
        Path("/nonexistent"),
        Path("/nonexistent"),
    )
    assert f"me:{password}" not in visible_data(indexes)
    assert set(indexes.credentials) == {("https://host.example/", basic("me", password))}
