# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

from gpuiso.devfilter import insn as op
from gpuiso.devfilter.compile import compile_rules
from gpuiso.devfilter.insn import Insn, pack
from gpuiso.devfilter.interpret import Access
from gpuiso.devfilter.levels import Level, judge
from gpuiso.devfilter.owner import GPUISO_NAME
from gpuiso.host.protocol import DeviceProgram
from gpuiso.policy.parse import parse_rules
from gpuiso.policy.rule import mask
from tests.devfilter.layouts import runc, systemd

GPU = Access("c", 195, 0, mask("rw"))
COIN = [Insn(op.JMP | op.CALL, imm=7), Insn(op.ALU64 | op.AND, 0, imm=1), Insn(op.JMP | op.EXIT)]


def program(number: int, insns: bytes | None, name: str = "") -> DeviceProgram:
    return DeviceProgram(id=number, name=name, tag="", attach_flags=2, insns=insns)


ALLOWING = program(1, pack(runc(parse_rules("deny a\nallow c 195:* rw"))))
DENYING = program(2, pack(systemd(parse_rules("allow c 1:3 rwm\nallow c 136:* rw"))), "sd_devices")
OURS = program(3, pack(compile_rules(parse_rules("allow a\ndeny c 195:0 w"))), GPUISO_NAME)


def test_no_program_allows() -> None:
    verdict = judge([Level("/", ()), Level("/a", ())], GPU)
    assert verdict.value == "allow"
    assert verdict.first_denial is None
    assert [level.why for level in verdict.levels] == ["no device program is attached"] * 2


def test_every_level_must_allow_and_the_first_that_denies_is_named() -> None:
    verdict = judge([Level("/", ()), Level("/a", [ALLOWING]), Level("/a/b", [DENYING]), Level("/a/b/c", [OURS])], GPU)
    assert verdict.value == "deny"
    assert [level.value for level in verdict.levels] == ["allow", "allow", "deny", "deny"]
    denial = verdict.first_denial
    assert denial is not None
    assert (denial.path, denial.why) == ("/a/b", "deny a *:* rwm")
    (by,) = denial.programs
    assert (by.program.id, by.owner.name, by.rule) == (2, "systemd", "deny a *:* rwm")
    (ours,) = verdict.levels[3].programs
    assert (ours.owner.name, ours.rule) == ("gpuiso", "deny c 195:0 w")


def test_programs_of_one_level_must_all_allow() -> None:
    verdict = judge([Level("/a", [ALLOWING, DENYING])], GPU)
    assert verdict.value == "deny"
    assert [by.value for by in verdict.levels[0].programs] == ["allow", "deny"]
    assert [by.owner.name for by in verdict.levels[0].programs] == ["runc", "systemd"]
    assert verdict.levels[0].programs[0].rule == "allow c 195:* rw"


def test_what_may_not_be_asked_is_unknown_unless_another_level_denies() -> None:
    unknown = judge([Level("/", None), Level("/a", [ALLOWING])], GPU)
    assert (unknown.value, unknown.levels[0].value) == ("unknown", "unknown")
    assert unknown.levels[0].why == "not permitted to ask which programs are attached"
    assert judge([Level("/", None), Level("/a", [DENYING])], GPU).value == "deny"


def test_a_program_that_may_not_be_read_is_unknown() -> None:
    verdict = judge([Level("/a", [program(9, None)])], GPU)
    assert verdict.value == "unknown"
    assert verdict.levels[0].why == "not permitted to read the program's instructions"


def test_a_program_that_tosses_a_coin_is_unknown_with_the_reason() -> None:
    verdict = judge([Level("/a", [program(9, pack(COIN))])], GPU)
    (by,) = verdict.levels[0].programs
    assert (by.value, by.rule, by.owner.name) == ("unknown", None, "foreign")
    assert by.why == "it depends on bpf_get_prandom_u32"


def test_mknod_is_asked_apart_from_opening() -> None:
    """An allow-list entry of rw and one of m are two questions to the kernel, so rwm is allowed."""
    both = program(1, pack(runc(parse_rules("deny a\nallow c 195:0 rw\nallow c *:* m"))))
    assert judge([Level("/a", [both])], Access("c", 195, 0, mask("rwm"))).value == "allow"
    assert judge([Level("/a", [ALLOWING])], Access("c", 195, 0, mask("rwm"))).value == "deny"


def test_rules_can_be_left_out() -> None:
    verdict = judge([Level("/a", [DENYING])], GPU, rules=False)
    (by,) = verdict.levels[0].programs
    assert (by.value, by.rule) == ("deny", None)
    assert by.why.startswith("returns 0 at instruction ")


def test_a_level_without_allow_multi_gives_way_to_programs_below() -> None:
    single = replace(DENYING, attach_flags=1)
    levels = [Level("/", [single]), Level("/a", ()), Level("/a/b", [ALLOWING])]
    verdict = judge(levels, GPU)
    assert verdict.value == "allow"
    assert [level.overridden for level in verdict.levels] == ["/a/b", None, None]
    assert verdict.levels[0].programs[0].value == "deny"
    assert judge(levels[:2], GPU).value == "deny"
    assert judge([Level("/", [DENYING]), *levels[1:]], GPU).value == "deny"


def test_a_level_that_may_have_to_give_way_is_unknown() -> None:
    single = replace(DENYING, attach_flags=0)
    verdict = judge([Level("/", [single]), Level("/a", None)], GPU)
    assert [level.value for level in verdict.levels] == ["unknown", "unknown"]
    assert judge([Level("/", [single]), Level("/a", None), Level("/a/b", [ALLOWING])], GPU).levels[0].overridden
    assert judge([Level("/", [DENYING]), Level("/a", None)], GPU).value == "deny"
