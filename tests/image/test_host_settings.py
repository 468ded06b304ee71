"""docker/host_settings.py: which settings of this machine's pip and apt a build gets."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tests.image.programs import ROOT

spec = importlib.util.spec_from_file_location("host_settings", ROOT / "docker/host_settings.py")
assert spec is not None
assert spec.loader is not None
host_settings = importlib.util.module_from_spec(spec)
spec.loader.exec_module(host_settings)


def test_pip_settings_that_mean_something_inside_a_build() -> None:
    listing = "\n".join(
        [
            ":env:.index-url='https://mirror.example/simple'",
            "global.index-url='https://older.example/simple'",
            "global.extra-index-url='file:///srv/index\\nhttps://more.example/simple'",
            "global.cert='/etc/company.pem'",
            "global.find-links='/srv/wheels'",
            "list.format='columns'",
        ]
    )
    values = host_settings.pip_values(listing)
    text = host_settings.pip_conf(values)
    assert "index-url = https://mirror.example/simple" in text
    assert "https://more.example/simple" in text
    assert "/srv" not in text
    assert "/etc" not in text
    assert host_settings.pip_conf({"find-links": "/srv/wheels"}) == ""


def test_apt_settings_that_mean_something_inside_a_build() -> None:
    dump = "\n".join(
        [
            'APT::Sandbox::User "_apt";',
            'Acquire::http "";',
            'Acquire::http::Proxy "http://proxy.example:3128";',
            'Acquire::https::CaInfo "/etc/company.pem";',
            'Acquire::Check-Valid-Until "false";',
            'DPkg::Post-Invoke:: "/usr/bin/something";',
        ]
    )
    kept = ['Acquire::http::Proxy "http://proxy.example:3128";', 'Acquire::Check-Valid-Until "false";']
    assert host_settings.apt_conf(dump).splitlines() == kept


def test_certificates_and_wheels_only_where_they_exist(tmp_path: Path) -> None:
    pem = tmp_path / "ca.pem"
    pem.write_text("x")
    assert host_settings.ca_file({"PIP_CERT": "/no/such", "SSL_CERT_FILE": str(pem)}, {}) == pem
    assert host_settings.ca_file({}, {"cert": str(pem)}) == pem
    assert host_settings.ca_file({}, {}) is None
    assert host_settings.wheelhouse({"find-links": str(tmp_path)}) is None
    (tmp_path / "a-1-py3-none-any.whl").touch()
    assert host_settings.wheelhouse({"find-links": f"/no/such {tmp_path}"}) == tmp_path
