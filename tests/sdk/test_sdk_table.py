"""A row that ran again replaces its line, and only in a table of the same image."""

from __future__ import annotations

from sdk_table import again

EARLIER = """# The image

1 of 2 rows passed on 2026-11-25: image of revision 0123456789ab, sagemaker 3.27.0. Seconds are those of the client.

| row | instances | client | expectation | seconds | passed |
|---|---|---|---|---|---|
| plain script | 1 | v2 | one rank | 18 | yes |
| plain script | 2 | v2 | two ranks | 20 | no: it failed |
"""
LINES = ["| row | instances | client |", "| plain script | 2 | v2 | two ranks | 9 | yes |"]


def test_a_row_that_ran_again_replaces_its_line_and_the_head_says_so():
    text = again(EARLIER, LINES, "0123456789ab", "2026-11-26")
    assert "2 of 2 rows passed on 2026-11-25: image of revision 0123456789ab" in text
    assert text.count("Run again on 2026-11-26: plain script (v2, 2).") == 1
    assert text.endswith("| one rank | 18 | yes |\n| plain script | 2 | v2 | two ranks | 9 | yes |\n")


def test_another_image_or_an_unknown_row_changes_nothing():
    assert again(EARLIER, LINES, "ba9876543210", "2026-11-26") == ""
    assert again(EARLIER, ["| new row | 2 | v2 | two ranks | 9 | yes |"], "0123456789ab", "2026-11-26") == ""
    assert again("", LINES, "0123456789ab", "2026-11-26") == ""
