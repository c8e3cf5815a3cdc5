# SPDX-License-Identifier: Apache-2.0
"""The driver's messages in the kernel's log, in the forms in which people keep that log."""

from __future__ import annotations

import pytest

from gpuiso.doctor.kernel_log import DriverLog, parse_log
from gpuiso.doctor.xid import look_up

XID = "NVRM: Xid (PCI:0000:3b:00): 31, pid=811, name=train, Ch 00000008"


def parsed(*lines: str) -> DriverLog:
    return parse_log(lines)


@pytest.mark.parametrize(
    ("head", "seconds"),
    [
        ("[   12.500000] ", 12.5),
        ("[1234567.500000] ", 1234567.5),
        ("<4>[   12.500000] ", 12.5),
        ("[   12.500000][  T811] ", 12.5),
        ("[   12.500000] [    C3] ", 12.5),
        ("[Mon Nov 30 01:23:45 2026] ", None),
        ("Nov 30 01:23:45 node7 kernel: ", None),
        ("Nov 30 01:23:45 node7 kernel: [   12.500000] ", 12.5),
        ("2026-11-30T01:23:45.123456+00:00 node7 kernel: ", None),
        ("", None),
    ],
)
def test_heads_of_lines(head: str, seconds: float | None) -> None:
    (event,) = parsed(head + XID).xids
    assert (event.address, event.number, event.message.seconds) == ("0000:3b:00.0", 31, seconds)


@pytest.mark.parametrize(
    ("text", "address", "number"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off", "0000:3b:00.0", 79),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 43, pid=1, name=x, Ch 8", "0000:3b:00.0", 43),
        ("NVRM: Xid (0000:03:00): 62, 2027 0000", "0000:03:00.0", 62),
        ("NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed", "0008:01:00.0", 154),
        ("NVRM: Xid (PCI:0000:AF:00): 8", "0000:af:00.0", 8),
    ],
)
def test_forms_of_xids(text: str, address: str, number: int) -> None:
    (event,) = parsed(f"[1.0] {text}").xids
    assert (event.address, event.number) == (address, number)


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid : 32, pid=2280636",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "audit: proctitle=NVRM: Xid (PCI:0000:66:00): 79, GPU has fallen off the bus.",
        "python3[811]: NVRM: Xid (PCI:0000:66:00): 79",
        "usb 1-1: device has fallen off the bus",
        "",
    ],
)
def test_what_is_no_message_of_the_driver(text: str) -> None:
    log = parsed(f"[1.0] {text}")
    assert (log.xids, log.lost) == ([], [])


def test_only_the_last_boot_counts() -> None:
    log = parsed(
        "[ 0.000000] Linux version 6.8.0-60-generic (buildd@x) #63",
        f"[ 99.0] {XID}",
        "[ 0.000000] Linux version 6.8.0-60-generic (buildd@x) #63",
        "[ 5.0] nvidia-nvlink: Nvlink Core is being initialized, major device number 240",
    )
    assert log.xids == []
    assert log.loaded is not None


def test_a_message_in_three_lines_names_its_gpu() -> None:
    log = parsed(
        "[5.0] NVRM: The NVIDIA GPU 0000:0b:00.0 (PCI ID: 10de:2206)",
        "[5.0] NVRM: installed in this system has",
        "[5.0] NVRM: fallen off the bus and is not responding to commands.",
    )
    assert [address for address, _ in log.lost] == ["0000:0b:00.0"]


def test_a_line_without_a_head_belongs_to_the_one_before() -> None:
    log = parsed(
        "[28.109029] NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
        "               NVRM: BAR0 is 0M @ 0x0 (PCI:0000:06:00.0)",
    )
    ((address, message),) = log.bad_regions
    assert (address, message.seconds) == ("0000:06:00.0", 28.109029)


def test_a_bar_is_bad_only_where_the_driver_says_so() -> None:
    assert parsed("[28.1] NVRM: BAR0 is 0M @ 0x0 (PCI:0000:06:00.0)").bad_regions == []


def test_a_stack_through_the_driver_marks_a_hung_task() -> None:
    log = parsed(
        "[900.0] INFO: task kworker/3:1:77 blocked for more than 122 seconds.",
        "[900.0]  schedule+0x2e/0x90",
        "[900.1] INFO: task train:811 blocked for more than 122 seconds.",
        "[900.1]  os_acquire_mutex+0x2e/0x90 [nvidia]",
    )
    assert [(task.comm, task.pid, task.in_driver) for task in log.hung] == [
        ("kworker/3:1", 77, False),
        ("train", 811, True),
    ]


def test_what_a_process_name_brings_in_is_not_shown() -> None:
    (event,) = parsed("[1.0] NVRM: Xid (PCI:0000:3b:00): 31, pid=811, name=\x1b[31mtrain\x07, Ch 8").xids
    assert event.message.quoted.isprintable()


@pytest.mark.parametrize(
    ("number", "word", "severity"),
    [
        (13, "RESTART_APP", "info"),
        (31, "RESTART_APP", "info"),
        (43, "IGNORE", "info"),
        (45, "WORKFLOW_XID_45", "info"),
        (63, "IGNORE", "info"),
        (64, "RESET_GPU", "error"),
        (79, "RESTART_BM", "error"),
        (94, "RESTART_APP", "info"),
        (95, "RESET_GPU", "error"),
        (119, "RESET_GPU", "error"),
        (151, "RESTART_VM", "error"),
        (54, "CHECK_MECHANICALS", "error"),
        (61, "CONTACT_SUPPORT", "warning"),
        (171, "none given", "warning"),
        (4711, "not listed", "warning"),
    ],
)
def test_nvidias_action(number: int, word: str, severity: str) -> None:
    action = look_up(number).action
    assert (action.word, action.severity) == (word, severity)
