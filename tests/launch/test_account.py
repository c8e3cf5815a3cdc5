# SPDX-License-Identifier: Apache-2.0
"""The user of a launch."""

from __future__ import annotations

import os

import pytest

from gpuiso.errors import BadInput, NotFound
from gpuiso.launch.account import find_account

LONG = "1" * 5000


@pytest.mark.parametrize("name", ["no-such-user-here", "4294967295", "4294967294", LONG, "a\0b", "\udcff"])
def test_a_user_that_is_not_there_is_not_found(name: str) -> None:
    with pytest.raises(NotFound, match=r"^there is no user .{1,41} here$"):
        find_account(name, {})


def test_a_user_by_number_or_name() -> None:
    assert find_account("0", {}).name == find_account("root", {}).name == "root"
    assert find_account("0" * 5000, {}).uid == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_who_called_sudo() -> None:
    assert find_account(None, {}).uid == 0
    assert find_account(None, {"SUDO_UID": "65534"}).uid == 65534
    assert find_account(None, {"SUDO_UID": "4294967294"}).uid == 4294967294
    for number in (LONG, "4294967295"):
        with pytest.raises(BadInput, match=r"^SUDO_UID is \d{1,40}…?, which is no user's number$"):
            find_account(None, {"SUDO_UID": number})
