# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses

import pytest

from gpuiso.gpu.visibility import Kind, Reason, cuda_visible
from gpuiso.gpu.visibility.cuda import lex, parse
from tests.gpu_visibility.values import gpu, mig, oracle, oracle_gpus

ORACLE = oracle("cuda_visible_devices.json")
FOUR = oracle_gpus(ORACLE)
UUIDS: list[str] = ORACLE["uuids"]


def reasons(value: str, denied: tuple[str, ...] = ()) -> list[Reason | None]:
    return [token.reason for token in parse(value, FOUR, denied=denied).tokens]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", [Reason.EMPTY]),
        ("  ", [Reason.EMPTY]),
        ("0,", [None, Reason.EMPTY]),
        ("0,,1", [None, Reason.EMPTY, Reason.AFTER_END]),
        ("-1", [Reason.NEGATIVE]),
        ("4294967295", [Reason.NEGATIVE]),
        ("0,4,1", [None, Reason.OUT_OF_RANGE, Reason.AFTER_END]),
        ("all", [Reason.WORD]),
        ("0,0", [Reason.REFUSED, Reason.DUPLICATE]),
        ("0,1,0", [Reason.REFUSED, Reason.REFUSED, Reason.DUPLICATE]),
        ("GPU-f80b,GPU-f80bc0db", [Reason.REFUSED, Reason.DUPLICATE]),
        ("0,9,0", [None, Reason.OUT_OF_RANGE, Reason.AFTER_END]),
        ("GPU-00", [Reason.UNKNOWN_UUID]),
        ("GPU-", [Reason.WORD]),
        (f"{UUIDS[0]},1", [None, Reason.MIXED_KIND]),
        (f"1,{UUIDS[0]}", [None, Reason.MIXED_KIND]),
        ("0,MIG-x", [None, Reason.MIXED_KIND]),
        ("MIG-00000000-0000-0000-0000-000000000000,0", [Reason.NO_MIG, Reason.AFTER_END]),
    ],
)
def test_reasons(value: str, expected: list[Reason | None]) -> None:
    assert reasons(value) == expected


def test_a_denied_gpu_is_told_from_an_unknown_one() -> None:
    (token,) = parse(UUIDS[1], FOUR, denied=["/dev/nvidia1"]).tokens
    assert (token.reason, token.physical) == (Reason.DENIED, 1)
    assert token.why == "it is GPU 1, whose node /dev/nvidia1 is denied"
    assert reasons("3", ("nvidia1",)) == [Reason.OUT_OF_RANGE]


def test_ignored_says_why_in_order() -> None:
    seen = cuda_visible(FOUR, {"CUDA_VISIBLE_DEVICES": "2,x,1"})
    assert seen.ignored == (
        ("x", "it is neither an index nor a UUID, and a plain word ends the list"),
        ("1", "it comes after 'x', which ends the list"),
    )


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("all", "NVIDIA_VISIBLE_DEVICES"),
        ("NoDevFiles", "neither an index nor a UUID"),
        ("'0'", "quotes"),
        (UUIDS[1].lower(), "in capitals"),
        (" " + UUIDS[1], "nothing before it"),
        (UUIDS[1].removeprefix("GPU-"), "starts with GPU-"),
        ("GPU98b0e715", "starts with GPU- in capitals"),
        ("99999999999999999999999999", "counts 4, from 0 to 3"),
    ],
)
def test_the_sentence_fits_the_mistake(text: str, part: str) -> None:
    value = "7" if text.startswith("9999") else text
    ((_, why),) = cuda_visible(FOUR, {"CUDA_VISIBLE_DEVICES": value}).ignored
    assert part in why


def test_a_range_is_read_as_its_first_number_with_a_warning() -> None:
    seen = cuda_visible(FOUR, {"CUDA_VISIBLE_DEVICES": "0-2"})
    assert seen.ignored == ()
    assert seen.warnings == ("CUDA_VISIBLE_DEVICES: '0-2' is read as '0', the rest is not read",)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("9223372036854775808", 0),  # these five were asked of driver 580.159.04
        ("18446744073709551616", -1),
        ("-4294967295", 1),
        ("4294967296", 0),
        ("-1", -1),
        ("18446744073709551615", -1),
        ("-18446744073709551615", 1),
    ],
)
def test_a_number_is_read_as_strtoul_does(text: str, number: int) -> None:
    assert lex(0, text).number == number


def test_a_number_of_thousands_of_digits() -> None:
    assert lex(0, "9" * 5000).number == -1
    assert lex(0, "-" + "9" * 5000).number == -1
    assert lex(0, "0" * 5000 + "2").number == 2


def test_control_nodes() -> None:
    for node, code in (
        ("nvidiactl", 100),
        ("/dev/nvidiactl", 100),
        ("nvidia-uvm", 999),
        ("nvidia-uvm-tools", 0),
    ):
        seen = cuda_visible(FOUR, {"CUDA_VISIBLE_DEVICES": "1"}, denied=[node])
        assert (seen.cuInit, len(seen.gpus)) == (code, 0 if code else 1)
        assert bool(seen.warnings) == bool(code)


def test_the_minor_is_not_the_index() -> None:
    gpus = [gpu(0, minor=1), gpu(1, minor=0)]
    (seen,) = cuda_visible(gpus, {"CUDA_VISIBLE_DEVICES": "0"}, denied=["nvidia1"]).gpus
    assert (seen.index, seen.physical, seen.node) == (0, 1, "/dev/nvidia0")


def test_gpus_of_other_drivers_are_not_counted() -> None:
    gpus = [gpu(0, vendor="amd"), dataclasses.replace(gpu(0), index=None, driver="vfio-pci"), gpu(0)]
    assert [seen.node for seen in cuda_visible(gpus, {}).gpus] == ["/dev/nvidia0"]
    nothing = cuda_visible(gpus[:2], {})
    assert (nothing.cuInit, nothing.gpus) == (100, ())
    assert nothing.warnings == ("NVIDIA's driver holds no GPU of this host",)


def test_an_ambiguous_uuid_ends_the_list_unless_denial_settles_it() -> None:
    gpus = [gpu(0, "GPU-aa11"), gpu(1, "GPU-aa22")]
    (token,) = parse("GPU-aa", gpus).tokens
    assert token.reason is Reason.AMBIGUOUS_UUID
    (seen,) = cuda_visible(gpus, {"CUDA_VISIBLE_DEVICES": "GPU-aa"}, denied=["nvidia0"]).gpus
    assert seen.physical == 1


def test_different_models_leave_the_fastest_first_order_open() -> None:
    mixed = [gpu(0, name="NVIDIA T4"), gpu(1, name="NVIDIA H200")]
    assert "PCI order" in cuda_visible(mixed, {}).warnings[0]
    assert "PCI order" in cuda_visible(mixed, {"CUDA_VISIBLE_DEVICES": "1"}).warnings[0]
    assert cuda_visible(mixed, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).warnings == ()
    assert cuda_visible(mixed, {"CUDA_VISIBLE_DEVICES": mixed[1].uuid or ""}).warnings == ()
    assert cuda_visible(mixed, {}, denied=["nvidia0"]).warnings == ()
    assert cuda_visible(FOUR, {}).warnings == ()


PARTED = [
    gpu(0, mig_enabled=True, mig_devices=(mig(7, cap=10), mig(8, 0, cap=11), mig(8, 1, "MIG-ffff", cap=12))),
    gpu(1),
    gpu(2, mig_enabled=True),
]


def names(env: dict[str, str], version: str | None = "580.1", denied: tuple[str, ...] = ()) -> list[object]:
    seen = cuda_visible(PARTED, env, denied=denied, driver_version=version)
    return [g.physical if g.mig is None else g.mig[:12] for g in seen.gpus]


def test_mig_without_a_variable() -> None:
    assert names({}) == ["MIG-00000007", "MIG-00000008", 1]
    for old in ("470.42.01", "525.60.13", "560.1"):
        assert names({}, old) == ["MIG-00000007"]
    assert names({}, denied=("nvidia0",)) == [1]
    assert names({}, denied=("nvidia-caps/nvidia-cap10",)) == ["MIG-00000008", 1]


def test_mig_tokens_of_both_spellings() -> None:
    new, old = "MIG-00000008", f"MIG-{PARTED[0].uuid}/8/0"
    for value in (new, old):
        assert names({"CUDA_VISIBLE_DEVICES": value}) == ["MIG-00000008"]
    assert names({"CUDA_VISIBLE_DEVICES": old}, "450.80.02") == ["MIG-00000008"]
    assert names({"CUDA_VISIBLE_DEVICES": new}, "450.80.02") == []
    assert "R470" in cuda_visible(PARTED, {"CUDA_VISIBLE_DEVICES": old}, driver_version="580.1").warnings[0]


@pytest.mark.parametrize(
    ("value", "version", "expected"),
    [
        ("MIG-00000007,MIG-00000008", "580.1", [None, None]),
        ("MIG-00000007,MIG-00000008", "525.1", [None, Reason.SINGLE_MIG]),
        ("MIG-00000007,MIG-00000007-0000", "580.1", [Reason.REFUSED, Reason.DUPLICATE]),
        ("MIG-00000008,MIG-ffff,MIG-00000007", "580.1", [None, Reason.SAME_GPU_INSTANCE, None]),
        ("MIG-0", "580.1", [Reason.AMBIGUOUS_UUID]),
        ("MIG-1", "580.1", [Reason.UNKNOWN_MIG]),
        ("MIG-", "580.1", [Reason.UNKNOWN_MIG]),
        ("MIG-00000007,GPU-00000001", "580.1", [None, None]),
        ("MIG-00000007,GPU-00000001", "525.1", [None, Reason.MIXED_KIND]),
        ("MIG-00000007,1", "580.1", [None, Reason.MIXED_KIND]),
        ("GPU-00000002", "580.1", [Reason.NO_MIG]),
        ("GPU-00000000", "580.1", [None]),
    ],
)
def test_mig_reasons(value: str, version: str, expected: list[Reason | None]) -> None:
    tokens = parse(value, PARTED, driver_version=version).tokens
    assert [token.reason for token in tokens] == expected


def test_a_denied_capability_node_hides_its_mig_device() -> None:
    (token,) = parse("MIG-00000007", PARTED, denied=["/dev/nvidia-caps/nvidia-cap10"]).tokens
    assert (token.kind, token.reason) == (Kind.MIG, Reason.DENIED)


def test_at_most_64_mig_devices() -> None:
    crowd = [
        gpu(n, mig_enabled=True, mig_devices=tuple(mig(g, uuid=f"MIG-{n:04x}{g:04x}") for g in range(7)))
        for n in range(10)
    ]
    assert len(cuda_visible(crowd, {}, driver_version="580.1").gpus) == 64
    value = ",".join(f"MIG-{n:04x}{g:04x}" for n in range(10) for g in range(7))
    listed = parse(value, crowd, driver_version="580.1")
    assert len(listed.devices) == 64
    assert listed.tokens[64].reason is Reason.TOO_MANY


def test_an_unknown_driver_version_is_said() -> None:
    seen = cuda_visible(PARTED, {})
    assert len(seen.gpus) == 3
    assert "driver's version is not known" in seen.warnings[0]
    assert "does not document" in cuda_visible(PARTED, {"CUDA_VISIBLE_DEVICES": "0"}, driver_version="580").warnings[0]
