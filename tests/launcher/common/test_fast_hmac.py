"""HMAC-SHA256: the same bytes as the standard library's."""

import hmac
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from algorun.common.fast_hmac import BLOCK, Hmac, compare_digest


@given(st.binary(max_size=3 * BLOCK), st.lists(st.binary(max_size=300), min_size=1, max_size=4))
@example(b"k" * BLOCK, [b""])
@example(b"k" * (BLOCK + 1), [b"x" * BLOCK, b""])
def test_every_text_has_the_mac_that_the_standard_library_gives_it(key, texts):
    mine = Hmac(key)
    for text in texts:
        assert mine.digest(text) == hmac.digest(key, text, "sha256")


def test_secrets_are_compared():
    assert compare_digest(b"a", b"a")
    assert not compare_digest(b"a", b"b")


@pytest.mark.parametrize("module", ["hashlib", "_hashlib", "hmac"])
def test_nothing_of_openssl_is_loaded(module):
    code = (
        f"import sys; from algorun.control.wire import seal; seal.same('a', 'b'); sys.exit({module!r} in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
