"""The platform's files: good ones are read, each bad one is one clear error."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common.errors import UserError
from algorun.job import jobfiles


def written(tmp_path, text):
    path = tmp_path / "resourceconfig.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_byte_order_mark_is_passed_over(tmp_path):
    """A file of arguments may come from an editor of Windows."""
    assert jobfiles.read_object(written(tmp_path, b'\xef\xbb\xbf{"a": 1}')) == {"a": 1}


def test_hosts_keep_the_order_of_the_file(tmp_path):
    hosts = ["algo-10", "algo-2", "algo-1"]
    found = jobfiles.read_resources(written(tmp_path, json.dumps({"hosts": hosts, "current_host": "algo-2"})))
    assert found.hosts == tuple(hosts)
    assert found.current_host == "algo-2"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not JSON: line 1 column 1"),
        ('{"hosts": ["a"],', "is not JSON: line 1"),
        (b"\xff\xfe", "is not UTF-8"),
        ("[]", "contains a JSON list"),
        ('{"hosts": NaN, "current_host": "a"}', "NaN is not JSON"),
        ('{"current_host": "a"}', "has no 'hosts'"),
        ('{"hosts": ["a"]}', "has no 'current_host'"),
        ('{"hosts": [], "current_host": "a"}', "not a list of host names"),
        ('{"hosts": "a", "current_host": "a"}', "not a list of host names"),
        ('{"hosts": ["a", "b"], "current_host": "c"}', "'c' is not in hosts; allowed: a, b"),
        ('{"hosts": ["a", "b", "a"], "current_host": "a"}', "a is named more than once"),
        ('{"hosts": ["a", 2], "current_host": "a"}', "2 is not a host name"),
        ('{"hosts": ["a b"], "current_host": "a b"}', "'a b' is not a host name"),
        ('{"hosts": ["a\\n0"], "current_host": "a"}', "is not a host name"),
        ('{"hosts": ["a\'; echo foo"], "current_host": "a"}', "is not a host name"),
        ('{"hosts": ["-x"], "current_host": "-x"}', "is not a host name"),
        ('{"hosts": ["a"], "current_host": "a", "network_interface_name": 3}', "3 is not a string"),
        ('{"hosts": ["a"], "current_host": "a", "instance_groups": [1]}', "not a list of objects"),
        ('{"hosts": ["a"], "current_host": "a", "instance_groups": [{"instance_group_name": "g", "hosts": ["b"]}]}',
         "group 'g' names b"),
        ("[" * 100_000, "usable JSON"),
    ],
)  # fmt: skip
def test_a_broken_file_is_one_error_that_names_it(tmp_path, text, says):
    path = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        jobfiles.read_resources(path)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)
    assert caught.value.code == 64


def test_a_missing_file_says_who_writes_it(tmp_path):
    with pytest.raises(UserError, match=r"the file is missing; SageMaker writes it; fix: at home"):
        jobfiles.read_resources(tmp_path / "resourceconfig.json")


def test_a_folder_in_its_place_is_refused(tmp_path):
    (tmp_path / "x.json").mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        jobfiles.read_object(tmp_path / "x.json")


def test_a_channel_name_cannot_leave_the_data_folder(tmp_path):
    path = tmp_path / "inputdataconfig.json"
    path.write_text('{"../up": {}}')
    with pytest.raises(UserError, match="not a channel name"):
        jobfiles.read_channels(path)


@given(st.binary(max_size=200))
def test_no_bytes_bring_anything_but_a_user_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "resourceconfig.json"
    path.write_bytes(data)
    with pytest.raises(UserError):
        jobfiles.read_resources(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {"hosts": json_values, "current_host": json_values}, optional={"instance_groups": json_values}
    )
)
def test_no_object_brings_anything_but_resources_or_a_user_error(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("values") / "resourceconfig.json"
    path.write_text(json.dumps(value))
    try:
        found = jobfiles.read_resources(path)
    except UserError:
        return
    assert found.current_host in found.hosts
