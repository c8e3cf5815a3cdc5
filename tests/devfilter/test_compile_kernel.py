# SPDX-License-Identifier: Apache-2.0
"""Compiled programs in the running kernel, beside its own v1 devices controller."""

from __future__ import annotations

import errno
import os
import random
import stat
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import pytest

from gpuiso.devfilter.compile import compile_rules
from gpuiso.devfilter.insn import pack, unpack
from gpuiso.devfilter.interpret import Access, interpret
from gpuiso.devfilter.owner import GPUISO_NAME, owner
from gpuiso.devfilter.table import MASKS
from gpuiso.kernel import bpf
from gpuiso.kernel.clone3 import clone3
from gpuiso.policy.meaning import allowed_bits, permits
from gpuiso.policy.rule import ALL_ACCESS, DeviceType, Rule, letters
from tests.devfilter.asking import asking, attached
from tests.devfilter.layouts import MAJORS, MINORS, random_rules
from tests.tiers import requires

pytestmark = requires("kernel")

TYPES: tuple[DeviceType, ...] = ("b", "c")
GRID = [
    Access(device, major, minor, mask)
    for device, major, minor, mask in product(TYPES, (*MAJORS, 2), (*MINORS, 1048575), MASKS)
]
SMALL_GRID = [
    Access(device, major, minor, mask) for device, major, minor, mask in product(TYPES, (1, 195), (0, 3, 255), MASKS)
]
SINGLE_BITS = (1, 2, 4)
V1_LISTS = 2000


def test_the_kernel_holds_what_the_rules_mean(tmp_cgroup: Path) -> None:
    source = random.Random(3)
    with asking(GRID, cgroup=tmp_cgroup) as ask:
        for _ in range(80):
            rules, default_allow = random_rules(source, source.randint(0, 14)), source.random() < 0.3
            program = pack(compile_rules(rules, default_allow=default_allow))
            with attached(tmp_cgroup, program, name=GPUISO_NAME) as dump:
                met = ask()
            assert owner(dump, name=GPUISO_NAME).name == "gpuiso"
            insns = unpack(dump)
            for access, allowed in zip(GRID, met, strict=True):
                bits = allowed_bits(rules, access.type, access.major, access.minor, default_allow=default_allow)
                assert permits(bits, access.mask) == allowed, (access, rules)
                assert (interpret(insns, access).value == "allow") == allowed, (access, rules)


@pytest.mark.parametrize("majors", [1, 64, 4096])
def test_the_verifier_takes_4096_rules(majors: int) -> None:
    source = random.Random(majors)
    rules = [
        Rule(
            source.random() < 0.7,
            source.choice(TYPES),
            195 if majors == 1 else source.randrange(majors),
            source.randrange(1 << 20),
            letters(source.randint(1, ALL_ACCESS)),
        )
        for _ in range(4096)
    ]
    os.close(bpf.prog_load(pack(compile_rules(rules)), name=GPUISO_NAME))


@pytest.fixture
def v1_cgroup() -> Iterator[Path]:
    """A directory of the v1 devices hierarchy; skips where that is not mounted."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        if kind == "cgroup" and "devices" in options.split(","):
            break
    else:
        pytest.skip("the v1 devices controller is not mounted")
    path = Path(mount, f"gpuiso-test-{os.getpid()}-{time.monotonic_ns()}")
    path.mkdir()
    try:
        yield path
    finally:
        path.rmdir()


def _write_v1(cgroup: Path, rules: Sequence[Rule]) -> None:
    """Put the rules into a v1 cgroup that allows everything before."""
    files = {
        allow: os.open(cgroup / name, os.O_WRONLY) for allow, name in ((True, "devices.allow"), (False, "devices.deny"))
    }
    try:
        os.write(files[False], b"a")
        os.write(files[True], b"a")
        for rule in rules:
            os.write(files[rule.allow], str(rule).split(" ", 1)[1].encode())
    finally:
        for fd in files.values():
            os.close(fd)


def _v1_rules(source: random.Random) -> list[Rule]:
    """Rules v1 can be told: an ``a`` only as the switch between the two kinds of list."""
    rules = random_rules(source, source.randint(0, 7))
    return [Rule(rule.allow, "a", None, None, "rwm") if rule.type == "a" else rule for rule in rules]


def _difference(rules: Sequence[Rule], access: Access, v1_allows: bool) -> str | None:
    """Why v1 may answer differently, by name, or None if it may not.

    exists: in a list of exceptions to "allow", v1 lets the test for existence pass whatever is denied.
    hole: v1 keeps no rule that contradicts one for other numbers; it ignores the later of them.
    sum: v1 adds up bits of rules for the same numbers only; gpuiso those of all rules.
    """
    start = max((index for index, rule in enumerate(rules) if rule.type == "a"), default=-1)
    default_allow = rules[start].allow if start >= 0 else True
    matching = [rule for rule in rules[start + 1 :] if rule.matches(access.type, access.major, access.minor)]
    if not access.mask and default_allow and v1_allows:
        return "exists"
    for index, later in enumerate(matching):
        for earlier in matching[:index]:
            if (
                earlier.allow != later.allow
                and (earlier.major, earlier.minor) != (later.major, later.minor)
                and earlier.mask & later.mask
            ):
                return "hole"
    if not default_allow and not v1_allows and access.mask not in (0, *SINGLE_BITS):
        by_numbers = {(rule.major, rule.minor) for rule in matching}
        alone = [[rule for rule in matching if (rule.major, rule.minor) == numbers] for numbers in by_numbers]
        bits = [allowed_bits(rules, access.type, access.major, access.minor) for rules in alone]
        if not any(permits(bits_of_one, access.mask) for bits_of_one in bits):
            return "sum"
    return None


def test_beside_the_v1_controller(tmp_cgroup: Path, v1_cgroup: Path) -> None:
    source = random.Random(1)
    seen: Counter[str] = Counter()
    with asking(SMALL_GRID, cgroup=tmp_cgroup) as ask_v2, asking(SMALL_GRID, v1=v1_cgroup) as ask_v1:
        for _ in range(V1_LISTS):
            rules = _v1_rules(source)
            program = compile_rules(rules, default_allow=True)
            _write_v1(v1_cgroup, rules)
            with attached(tmp_cgroup, pack(program)):
                met = ask_v2()
            for access, v2, v1 in zip(SMALL_GRID, met, ask_v1(), strict=True):
                assert (interpret(program, access).value == "allow") == v2
                name = None if v1 == v2 else _difference(rules, access, v1)
                assert v1 == v2 or name is not None, (access, v1, [str(rule) for rule in rules])
                seen["same" if name is None else name] += 1
    # Each intended difference shows, and they stay the exception.
    assert set(seen) == {"same", "exists", "hole", "sum"}
    assert seen["same"] > 0.9 * seen.total(), seen


def test_opening_a_node_without_a_driver(tmp_cgroup: Path, tmp_path: Path) -> None:
    """What tells isolation without a GPU: an allowed open goes on to the missing driver."""
    rules = [Rule(True, "c", 60, 0, "rw"), Rule(True, "c", 60, 1, "r")]
    for minor in range(3):
        os.mknod(tmp_path / str(minor), stat.S_IFCHR | 0o600, os.makedev(60, minor))  # 60: for local use, unused
    with attached(tmp_cgroup, pack(compile_rules(rules))):
        met = {
            (minor, name): _open_errno(tmp_cgroup, tmp_path / str(minor), flags)
            for minor in range(3)
            for name, flags in (("r", os.O_RDONLY), ("rw", os.O_RDWR), ("path", os.O_PATH))
        }
    no_driver, denied = errno.ENXIO, errno.EPERM
    assert met == {
        (0, "r"): no_driver,
        (0, "rw"): no_driver,
        (0, "path"): 0,
        (1, "r"): no_driver,
        (1, "rw"): denied,
        (1, "path"): 0,
        (2, "r"): denied,
        (2, "rw"): denied,
        (2, "path"): 0,
    }


def _open_errno(cgroup: Path, node: Path, flags: int) -> int:
    cgroup_fd = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    pid, pidfd = clone3(cgroup_fd=cgroup_fd)
    if pid == 0:
        try:
            os.open(node, flags)
        except OSError as error:
            os._exit(error.errno or 255)
        os._exit(0)
    os.close(pidfd)
    os.close(cgroup_fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
