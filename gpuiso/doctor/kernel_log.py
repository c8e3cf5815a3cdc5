# SPDX-License-Identifier: Apache-2.0
"""The messages of NVIDIA's driver in the kernel's log, taken apart.

Their forms are those of kernel-open/nvidia and src/nvidia in NVIDIA's open-gpu-kernel-modules (595.45.04). The log
spans the whole uptime, or less where the ring has turned over; times are seconds after boot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpuiso.gpu.pci import normal_address

__all__ = ["DriverLog", "HungTask", "Message", "Sxid", "XidEvent", "parse_log"]

# dmesg(1) with seconds, with -T, with the caller's id; journalctl -k; a continuation line has no head at all.
_HEAD = re.compile(
    r"(?:<\d+>)?(?:\w{3} +\d+ [\d:]+ \S+ kernel: |\d{4}-\d\d-\d\dT\S+ \S+ kernel: )?"
    r"(?:\[ *(?P<seconds>\d{1,12}\.\d{1,9})\]|\[[A-Z][^\]]*\])? *(?:\[ *[TC]\d+\])? *"
)
_BOOT = re.compile(r"Linux version \d")
_INTERESTING = re.compile(r"NVRM|nvidia|knvlink|\[10de:|blocked for more than")
_ADDRESS = re.compile(r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?\b")

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<address>[0-9a-fA-F:.]+)[^)]*\): (?P<number>\d{1,5})(?:, (?P<rest>.*))?")
_LOST = re.compile(r"NVRM: .*fallen off the bus")
_RM_INIT = re.compile(r"NVRM: .*(?:RmInitAdapter failed!|rm_init_adapter failed)")
_BAD_REGION = re.compile(r"NVRM: (?P<region>BAR\d is \S+ @ 0x[0-9a-f]+) \(PCI:(?P<address>[0-9a-fA-F:.]+)\)")
_REGION_INVALID = "This PCI I/O region assigned to your NVIDIA device is invalid"
_LOADED = re.compile(r"nvidia-nvlink: Nvlink Core is being initialized")
_FOUND = re.compile(r"pci (?P<address>[0-9a-f:.]+): \[10de:[0-9a-f]{4}\] type ")
_LINK_MASK = re.compile(
    r"\bknvlink(?:UpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask"
    r"|DiscoverPostRxDetLinks_\w+: Getting peer\d+'s postRxDetLinkMask failed)"
)
_SXID = re.compile(
    r"nvidia-nvswitch(?P<switch>\d{1,4}): SXid \(PCI:(?P<address>[0-9a-fA-F:.]+)\): (?P<number>\d{1,6}), "
    r"(?P<kind>Fatal|Non-fatal)?(?P<rest>.*)"
)
_HUNG = re.compile(r"INFO: task (?P<comm>.+):(?P<pid>\d{1,9}) blocked for more than (?P<seconds>\d+) seconds")
_TRACE = 60  # lines after "blocked for more than" that hold the task's stack
_QUOTED = 200  # characters of a line that evidence shows


@dataclass(frozen=True, slots=True)
class Message:
    """One line of this boot. ``place`` orders lines; ``seconds`` is None where the log has no such times."""

    place: int
    seconds: float | None
    text: str

    @property
    def quoted(self) -> str:
        """The line as evidence: on one line and without control characters, which a process name may bring in."""
        text = "".join(char if char.isprintable() else "?" for char in self.text)
        head = "" if self.seconds is None else f"[{self.seconds:.0f} s] "
        return head + (text if len(text) <= _QUOTED else f"{text[:_QUOTED]}...")


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One Xid. ``address`` is a PCI address as sysfs writes it, ``rest`` what follows the number."""

    message: Message
    address: str
    number: int
    rest: str


@dataclass(frozen=True, slots=True)
class Sxid:
    """An error of an NVSwitch. ``kind`` is ``Fatal``, ``Non-fatal`` or empty."""

    message: Message
    switch: int
    address: str
    number: int
    kind: str


@dataclass(frozen=True, slots=True)
class HungTask:
    """The kernel's word that a task sleeps uninterruptibly for minutes; ``in_driver``: its stack names the driver."""

    message: Message
    comm: str
    pid: int
    in_driver: bool


@dataclass(slots=True)
class DriverLog:
    """What the driver said since this boot, oldest first. The mappings are by PCI address."""

    xids: list[XidEvent] = field(default_factory=list)
    lost: list[tuple[str | None, Message]] = field(default_factory=list)
    rm_init: list[tuple[str | None, Message]] = field(default_factory=list)
    bad_regions: list[tuple[str | None, Message]] = field(default_factory=list)
    sxids: list[Sxid] = field(default_factory=list)
    link_mask: list[Message] = field(default_factory=list)
    hung: list[HungTask] = field(default_factory=list)
    loaded: Message | None = None
    """The last time that the driver's module started."""
    found: dict[str, Message] = field(default_factory=dict)
    """The last time that the kernel found each NVIDIA function on the bus."""


def _messages(lines: Iterable[str]) -> Iterator[Message]:
    """The lines that may matter; one without a head goes with the one before it, which then matters as well."""
    seconds: float | None = None
    for place, line in enumerate(lines):
        if _INTERESTING.search(line) is None:
            continue
        match = _HEAD.match(line)
        if match is not None and match.end():
            if match["seconds"] is not None:
                seconds = float(match["seconds"])
            line = line[match.end() :]
        yield Message(place, seconds, line.strip())


def _this_boot(lines: list[str]) -> int:
    """Where the last boot begins, for a log that was put together from several."""
    for place in range(len(lines) - 1, -1, -1):
        if "Linux version" in lines[place]:
            head = _HEAD.match(lines[place])
            if _BOOT.match(lines[place], head.end() if head is not None else 0):
                return place
    return 0


def _full(address: str) -> str:
    return normal_address(address if "." in address else f"{address}.0")


def _address_in(text: str) -> str | None:
    match = _ADDRESS.search(text)
    return None if match is None else _full(match[0])


def parse_log(lines: Iterable[str]) -> DriverLog:
    """Takes the kernel's log apart; lines of others cost next to nothing."""
    every = list(lines)
    log = DriverLog()
    previous: list[str] = []  # one message of the driver may take three lines, with the address on the first
    in_region = False
    for message in _messages(every[_this_boot(every) :]):
        text = message.text
        if log.hung and "[nvidia" in text and message.place - log.hung[-1].message.place < _TRACE:
            last = log.hung[-1]
            log.hung[-1] = HungTask(last.message, last.comm, last.pid, True)
        if _LINK_MASK.search(text) is not None:
            log.link_mask.append(message)
        elif text.startswith("NVRM: "):
            in_region = _driver_message(log, message, previous, in_region)
            previous = [*previous[-2:], text]
        else:
            _other_message(log, message)
    return log


def _driver_message(log: DriverLog, message: Message, previous: list[str], in_region: bool) -> bool:
    """Sorts in a message of the driver's core; tells whether the next line is to name a bad region."""
    text = message.text
    if (xid := _XID.match(text)) is not None:
        log.xids.append(XidEvent(message, _full(xid["address"]), int(xid["number"]), xid["rest"] or ""))
    elif _LOST.match(text):
        near = (_address_in(line) for line in (text, *reversed(previous)))
        log.lost.append((next((address for address in near if address is not None), None), message))
    elif _RM_INIT.match(text):
        log.rm_init.append((_address_in(text), message))
    elif _REGION_INVALID in text:
        return True
    elif in_region and (region := _BAD_REGION.match(text)) is not None:
        log.bad_regions.append((_full(region["address"]), message))
    return False


def _other_message(log: DriverLog, message: Message) -> None:
    text = message.text
    if (sxid := _SXID.match(text)) is not None:
        log.sxids.append(
            Sxid(message, int(sxid["switch"]), _full(sxid["address"]), int(sxid["number"]), sxid["kind"] or "")
        )
    elif _LOADED.match(text):
        log.loaded = message
    elif (found := _FOUND.match(text)) is not None:
        log.found[_full(found["address"])] = message
    elif (hung := _HUNG.match(text)) is not None:
        log.hung.append(HungTask(message, hung["comm"], int(hung["pid"]), False))
