# SPDX-License-Identifier: Apache-2.0
"""``gpuiso run``: what it does not take."""

from __future__ import annotations

import pytest

from tests.cli.command import run


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "-1", "1e3", "1_0", "", "9" * 5000])
def test_a_time_to_wait_is_a_number_of_seconds(capsys: pytest.CaptureFixture[str], text: str) -> None:
    result = run(capsys, "run", "--gpus", "1", "--print", f"--wait-for-gpu={text}", "--", "true")
    assert (result.code, result.out) == (2, "")
    assert "is not a number of 0 or more" in result.err
