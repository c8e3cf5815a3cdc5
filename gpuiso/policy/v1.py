# SPDX-License-Identifier: Apache-2.0
"""Device rules on cgroup v1: what its controller holds, and the writes from one state to another.

The controller (security/device_cgroup.c of the kernel) has a default and exceptions to it. A write adds bits to one
exception or takes them away; only an ``a`` changes the default, and it forgets all exceptions. Where the default is
to deny, one exception must cover an access as a whole; where it is to allow, any exception that shares a bit denies.

The writes from one state to another leave no gap: at no moment is something allowed that neither state allows, or
denied that both allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpuiso.errors import NotSupported
from gpuiso.policy.exceptions import Exceptions, Hole, Key, exceptions
from gpuiso.policy.parse import parse_device
from gpuiso.policy.rule import ALL_ACCESS, DeviceType, Rule, letters

__all__ = ["V1State", "V1Write", "read_devices_list", "v1_state", "v1_writes"]

_File = Literal["devices.allow", "devices.deny"]


@dataclass(frozen=True)
class V1State:
    """``exceptions`` to the default; None where they are not known (devices.list shows none to an allowing default)."""

    default_allow: bool
    exceptions: Mapping[Key, int] | None

    def allows(self, device: DeviceType, major: int, minor: int, mask: int) -> bool:
        """What the kernel decides. :raises ValueError: the exceptions are not known."""
        if self.exceptions is None:
            raise ValueError("the exceptions of this state are not known")
        bits = [bits for key, bits in self.exceptions.items() if _matches(key, device, major, minor)]
        if self.default_allow:
            return not any(mask & held for held in bits)
        return any(mask & ~held == 0 for held in bits)


@dataclass(frozen=True)
class V1Write:
    """One write(2): ``text`` to ``file`` of the cgroup."""

    file: _File
    text: str

    def __str__(self) -> str:
        return f"{self.file} {self.text}"


def v1_state(rules: Sequence[Rule], *, default_allow: bool = False) -> V1State:
    """The state that means what the rules mean, with their own default if there is such a state.

    :raises NotSupported: a rule takes back a part of what a wildcard gives; the kernel would accept it silently and
        change nothing.
    """
    try:
        return V1State(default_allow, exceptions(rules, rules_default=default_allow, default_allow=default_allow))
    except Hole as hole:
        try:
            other = not default_allow
            return V1State(other, exceptions(rules, rules_default=default_allow, default_allow=other))
        except Hole:
            raise hole.because("cgroup v1 would accept that and change nothing") from None


def read_devices_list(text: str) -> V1State:
    """The state that devices.list shows. :raises BadInput: a line is not as the kernel writes it."""
    found: Exceptions = {}
    for number, line in enumerate(text.splitlines(), 1):
        rule = parse_device(line, allow=True, file="devices.list", line=number)
        if rule.type == "a":
            return V1State(True, None)
        found[rule.type, rule.major, rule.minor] = rule.mask
    return V1State(False, found)


def v1_writes(old: V1State, new: V1State, *, vacant: bool = False) -> list[V1Write]:
    """The writes that turn ``old`` into ``new``; none if nothing is to be changed.

    In a ``vacant`` cgroup (no process in it or below it) nobody meets a gap.

    :raises NotSupported: the default changes, and for a moment something would be allowed or denied wrongly.
    :raises ValueError: the exceptions of ``new`` are not known.
    """
    if new.exceptions is None:
        raise ValueError("the exceptions of the new state are not known")
    if old.exceptions is None or old.default_allow != new.default_allow:
        if not vacant and not _may_reset(old, new):
            raise _gap(new)
        return [_write("a", allow=new.default_allow), *_additions(new, {})]
    if new.default_allow:
        # Denials add up bit by bit: with those of both states in place only what both allow is allowed.
        return [*_additions(new, old.exceptions), *_removals(new, old.exceptions)]
    return _allow_list(old.exceptions, new.exceptions, vacant=vacant)


def _may_reset(old: V1State, new: V1State) -> bool:
    """Whether an ``a`` on the way opens no gap. Where that takes several entries together to see, the answer is no."""
    if not new.exceptions:
        return True
    if old.exceptions is None:
        return False
    for key, bits in new.exceptions.items():
        covering = [old.exceptions.get(wide, 0) for wide in _covering(key)]
        # Once everything is allowed, old must have allowed what new will deny, whatever is asked for beside it;
        # once everything is denied, old must have denied each bit that new will allow.
        harmless = ALL_ACCESS in covering if new.default_allow else not bits & ~_union(covering)
        if not harmless:
            return False
    return True


def _additions(new: V1State, old: Mapping[Key, int]) -> Iterator[V1Write]:
    for key, bits in (new.exceptions or {}).items():
        yield from _change(key, bits & ~old.get(key, 0), allow=not new.default_allow)


def _removals(new: V1State, old: Mapping[Key, int]) -> Iterator[V1Write]:
    for key, bits in old.items():
        yield from _change(key, bits & ~(new.exceptions or {}).get(key, 0), allow=new.default_allow)


def _allow_list(old: Mapping[Key, int], new: Mapping[Key, int], *, vacant: bool) -> list[V1Write]:
    """From exceptions that allow to others.

    What is new comes first and what is old goes last, so in between both are there. Only an entry that loses bits
    and gains others must shrink before it grows: with the bits of both it would let pass accesses that need both.
    """
    turning = [key for key in new if old.get(key, 0) & ~new[key] and new[key] & ~old.get(key, 0) and key in old]
    bridges = _bridges(turning, old, new)
    if turning and not vacant and not (_full(old) and _full(new)):
        raise NotSupported(
            "the entries of the cgroup's devices.list overlap in part, so that no order of writes changes them without "
            "a gap",
            hint="write them anew while no process is in the cgroup",
        )
    writes: list[V1Write] = []
    for key, bits in bridges.items():
        writes += _change(key, bits, allow=True)
    for key, bits in new.items():
        if key not in turning:
            writes += _change(key, bits & ~old.get(key, 0), allow=True)
    for key in turning:
        writes += _change(key, old[key] & ~new[key], allow=False)
        writes += _change(key, new[key] & ~old[key], allow=True)
    for key, bits in (*old.items(), *bridges.items()):
        if key not in turning:
            writes += _change(key, bits & ~new.get(key, 0), allow=False)
    return writes


def _bridges(turning: Sequence[Key], old: Mapping[Key, int], new: Mapping[Key, int]) -> Exceptions:
    """Entries for the time in between, where a major's and a minor's entry cross: old may allow a device through
    one of them, new through the other, and neither order of turning them would keep it allowed.
    """
    majors = [key for key in turning if key[1] is not None and key[2] is None]
    minors = [key for key in turning if key[1] is None and key[2] is not None]
    found: Exceptions = {}
    for device, major, _ in majors:
        for kind, _, minor in minors:
            key: Key = (device, major, minor)
            if kind == device and key not in old and key not in new:
                both = _union(old.get(wide, 0) for wide in _covering(key))
                found[key] = both & _union(new.get(wide, 0) for wide in _covering(key))
    return found


def _full(state: Mapping[Key, int]) -> bool:
    """Whether each device has all its bits in one entry, the narrowest that matches it."""
    minors = [key for key in state if key[1] is None and key[2] is not None]
    for key, bits in state.items():
        if any(state.get(wide, 0) & ~bits for wide in _covering(key)):
            return False
        device, major, minor = key
        if major is None or minor is not None:
            continue
        for kind, _, crossing in minors:
            other = state[kind, None, crossing]
            if kind == device and (device, major, crossing) not in state and bits & ~other and other & ~bits:
                return False
    return True


def _covering(key: Key) -> list[Key]:
    """The keys of all entries that match whatever ``key`` matches."""
    device, major, minor = key
    return list(dict.fromkeys((device, a, b) for a in (None, major) for b in (None, minor)))


def _union(parts: Iterable[int]) -> int:
    bits = 0
    for part in parts:
        bits |= part
    return bits


def _matches(key: Key, device: DeviceType, major: int, minor: int) -> bool:
    return key[0] == device and key[1] in (None, major) and key[2] in (None, minor)


def _change(key: Key, bits: int, *, allow: bool) -> Iterator[V1Write]:
    if bits:
        device, major, minor = key
        numbers = ":".join("*" if number is None else str(number) for number in (major, minor))
        yield _write(f"{device} {numbers} {letters(bits)}", allow=allow)


def _write(text: str, *, allow: bool) -> V1Write:
    return V1Write("devices.allow" if allow else "devices.deny", text)


def _gap(new: V1State) -> NotSupported:
    what = "everything would be allowed" if new.default_allow else "everything would be denied"
    return NotSupported(
        f"cgroup v1 cannot change its default under running processes without a gap: for a moment {what}",
        hint="make a new cgroup with the rules and move the processes there, or write while none is in the cgroup",
    )
