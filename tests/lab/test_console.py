# SPDX-License-Identifier: Apache-2.0
"""When a virtual machine is started once more, and when not."""

from __future__ import annotations

import pytest

from tests.lab.vm import panicked_at_boot

TRACE = " do_one_initcall+0x5b/0x310\n kernel_init_freeable+0x23d/0x2a0\n"
PANIC = "Kernel panic - not syncing: Fatal exception in interrupt\n"


@pytest.mark.parametrize(
    ("console", "again"),
    [
        (TRACE + PANIC, True),
        (" __cgroup_bpf_run_filter+0x1/0x2\n" + PANIC, False),
        (TRACE, False),
        ("", False),
    ],
)
def test_only_a_kernel_that_ran_no_program_gets_another_try(console: str, again: bool) -> None:
    assert panicked_at_boot(console) is again
