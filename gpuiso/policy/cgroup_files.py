# SPDX-License-Identifier: Apache-2.0
"""The files of cgroup v2 that a policy may set, and what may be written to them.

Names and values are those of Documentation/admin-guide/cgroup-v2.rst of the kernel. Only limits and weights are
here: a file that moves processes or starts something is not a setting. Whether a kernel has a file is known when
it is written to.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable

from gpuiso.policy.limits import parse_bytes, parse_integer, parse_quota_period

__all__ = ["FILES", "known_file", "parse_file_value", "similar_file"]

_Parser = Callable[[str], str]
"""One line as written to one as the kernel takes it. Raises ValueError with a sentence."""

_MOST = (1 << 64) - 1
_PID_MAX = 1 << 22  # PID_MAX_LIMIT, include/linux/threads.h
_DEVICE = re.compile(r"[0-9]{1,4}:[0-9]{1,7}")
_LIST_ITEM = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6})(?::([0-9]{1,6})/([0-9]{1,6}))?)?")
_PERCENT = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,2})?")


def _bytes(text: str) -> str:
    return str(parse_bytes(text))


def _integer(low: int, high: int, *, or_max: bool = False) -> _Parser:
    def parse(text: str) -> str:
        if or_max and text == "max":
            return text
        try:
            return str(parse_integer(text, low, high))
        except ValueError as error:
            raise ValueError(f"{error}, or max" if or_max else str(error)) from None

    return parse


def _choice(*words: str) -> _Parser:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"expected {', '.join(words[:-1])} or {words[-1]}, not {text!r}")
        return text

    return parse


def _cpu_max(text: str) -> str:
    quota, period = parse_quota_period(text)
    return f"{'max' if quota is None else quota} {period}"


def _percent(text: str) -> str:
    if text == "max":
        return text
    if not _PERCENT.fullmatch(text) or float(text) > 100:
        raise ValueError(f"expected a percentage from 0 to 100 with up to two decimals, or max, not {text!r}")
    return text


def _list(text: str) -> str:
    """A list as cpuset.cpus takes it: ``0-3,8``, ``0-15:2/4``; empty for what the parent has."""
    for item in text.split(",") if text else ():
        match = _LIST_ITEM.fullmatch(item.strip())
        if match is None:
            raise ValueError(f"expected a list such as 0-3,8, not {text!r}")
        if match[2] is not None and int(match[2]) < int(match[1]):
            raise ValueError(f"the range {item.strip()} ends before it starts")
        if match[3] is not None and not 0 < int(match[3]) <= int(match[4]):
            raise ValueError(f"of {item.strip()}, the part before the slash is from 1 to the part behind it")
    return text


def _device(text: str) -> str:
    if not _DEVICE.fullmatch(text):
        raise ValueError(f"expected the MAJOR:MINOR of a block device, not {text!r}")
    return text


def _assignments(first: str, check: _Parser, fields: dict[str, _Parser] | _Parser) -> _Parser:
    """``FIRST KEY=VALUE …``, as io.max and its kin are written. One parser for ``fields`` takes keys of any name."""

    def parse(text: str) -> str:
        name, *assigned = text.split()
        check(name)
        if not assigned:
            raise ValueError(f"expected {first} KEY=VALUE …, not {text!r}")
        seen: set[str] = set()
        for word in assigned:
            key, equals, value = word.partition("=")
            if not key or not equals or (isinstance(fields, dict) and key not in fields):
                known = ", ".join(f"{key}=" for key in fields) if isinstance(fields, dict) else "KEY=VALUE"
                raise ValueError(f"expected {known}, not {word!r}")
            if key in seen:
                raise ValueError(f"{key} is given twice")
            seen.add(key)
            (fields[key] if isinstance(fields, dict) else fields)(value)
        return " ".join((name, *assigned))

    return parse


def _pair(first: str, value: _Parser) -> _Parser:
    """``NAME VALUE``, as dmem.max and misc.max are written."""

    def parse(text: str) -> str:
        words = text.split()
        if len(words) != 2:
            raise ValueError(f"expected {first} and a value, not {text!r}")
        return f"{words[0]} {value(words[1])}"

    return parse


def _weight(low: int, high: int) -> _Parser:
    """``N``, ``default N``, ``MAJOR:MINOR N`` or ``MAJOR:MINOR default``."""
    number = _integer(low, high)

    def parse(text: str) -> str:
        words = text.split()
        if len(words) == 1:
            return number(text)
        if len(words) != 2:
            raise ValueError(f"expected a weight, or a device and a weight, not {text!r}")
        if words[0] != "default":
            _device(words[0])
        if words[0] == "default" or words[1] != "default":
            number(words[1])
        return " ".join(words)

    return parse


_COUNT_OR_MAX = _integer(0, (1 << 31) - 1, or_max=True)
_FLAG = _choice("0", "1")
_RATE = _integer(1, _MOST, or_max=True)
_IO_MAX = _assignments("MAJOR:MINOR", _device, dict.fromkeys(("rbps", "wbps", "riops", "wiops"), _RATE))

FILES: dict[str, _Parser] = {
    **dict.fromkeys(("memory.min", "memory.low", "memory.high", "memory.max"), _bytes),
    **dict.fromkeys(("memory.swap.high", "memory.swap.max", "memory.zswap.max"), _bytes),
    **dict.fromkeys(("memory.oom.group", "memory.zswap.writeback", "cpu.idle"), _FLAG),
    "pids.max": _integer(0, _PID_MAX, or_max=True),
    "cpu.max": _cpu_max,
    "cpu.max.burst": _integer(0, 1 << 43),
    "cpu.weight": _integer(1, 10_000),
    "cpu.weight.nice": _integer(-20, 19),
    **dict.fromkeys(("cpu.uclamp.min", "cpu.uclamp.max"), _percent),
    **dict.fromkeys(("cpuset.cpus", "cpuset.mems", "cpuset.cpus.exclusive"), _list),
    "cpuset.cpus.partition": _choice("member", "root", "isolated"),
    "io.max": _IO_MAX,
    "io.latency": _assignments("MAJOR:MINOR", _device, {"target": _integer(0, _MOST)}),
    "io.weight": _weight(1, 10_000),
    "io.bfq.weight": _weight(1, 1_000),
    "io.prio.class": _choice("no-change", "promote-to-rt", "restrict-to-be", "idle", "none-to-rt"),
    **dict.fromkeys(("dmem.min", "dmem.low", "dmem.max"), _pair("a region", _bytes)),
    "misc.max": _pair("a resource", _integer(0, _MOST, or_max=True)),
    "rdma.max": _assignments("DEVICE", str, dict.fromkeys(("hca_handle", "hca_object"), _COUNT_OR_MAX)),
    **dict.fromkeys(("cgroup.max.depth", "cgroup.max.descendants"), _COUNT_OR_MAX),
}
"""The files with a fixed name, and who reads their values; there are also hugetlb.SIZE.max and its like."""
_SEVERAL = frozenset(
    {"io.max", "io.latency", "io.weight", "io.bfq.weight", "dmem.min", "dmem.low", "dmem.max", "misc.max", "rdma.max"}
)
"""Files that hold a line for each device, each of which is written by itself."""
_HUGETLB = re.compile(r"hugetlb\.[0-9]+[KMG]B\.(?:rsvd\.)?max")

_OTHER_NAMES = {
    "memory.limit_in_bytes": "memory.max",
    "memory.soft_limit_in_bytes": "memory.low",
    "memory.memsw.limit_in_bytes": "memory.swap.max",
    "cpu.cfs_quota_us": "cpu.max",
    "cpu.cfs_period_us": "cpu.max",
    "cpu.shares": "cpu.weight",
    "devices.allow": "devices",
    "devices.deny": "devices",
    "gpu.memory": "gpu.memory.max",
}
"""What cgroup v1 and wishful pages call them."""


def known_file(name: str) -> bool:
    return name in FILES or _HUGETLB.fullmatch(name) is not None


def similar_file(name: str, also: tuple[str, ...] = ()) -> str | None:
    """What may have been meant by a name that is not known; ``also`` are names that are known besides the files."""
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    close = difflib.get_close_matches(name[:64], (*FILES, *also), n=1, cutoff=0.8)
    return close[0] if close else None


def parse_file_value(name: str, text: str) -> tuple[str, ...]:
    """What to write to a file that is known, one write(2) an item.

    :raises ValueError: the kernel would refuse it, or take it for something else.
    """
    parse = FILES.get(name, _bytes)
    lines = [line.strip() for line in text.split("\n")]
    lines = [line for line in lines if line] or [""]
    if len(lines) > 1 and name not in _SEVERAL:
        raise ValueError("takes one line")
    if not all(line.isprintable() for line in lines):
        raise ValueError(f"{text!a} holds a character that cannot stand in a value")
    if not lines[0] and parse is not _list:
        raise ValueError("a value is missing")
    return tuple(parse(line) for line in lines)
