# SPDX-License-Identifier: Apache-2.0
"""Replacements are one to one, keep their form, and leave nothing of what they replace."""

from __future__ import annotations

import re

from hypothesis import assume, given
from hypothesis import strategies as st

from gpuiso.host.redact import Redactor

HEX = "0123456789abcdef"
KEYS = st.binary(min_size=1, max_size=32)
DIGITS = st.text(HEX, min_size=32, max_size=32)
# Letters that no replacement, no word of this test and no keyword has in a row.
NAMES = st.text("bdgjkqvxz", min_size=3, max_size=12)


def uuid(digits: str) -> str:
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def common(first: str, second: str) -> int:
    return next((at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), len(first))


@given(KEYS, DIGITS, DIGITS, st.integers(0, 32))
def test_uuids_share_as_many_leading_digits_as_before(key: bytes, first: str, second: str, shared: int) -> None:
    second = first[:shared] + second[shared:]
    redactor = Redactor(key)
    new_first, new_second = redactor.text(f"GPU-{uuid(first)}"), redactor.text(f"GPU-{uuid(second)}")
    assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", new_first)
    assert common(new_first, new_second) == common(f"GPU-{uuid(first)}", f"GPU-{uuid(second)}")
    assert redactor.text(f"MIG-GPU-{uuid(first)}/1/0") == f"MIG-{new_first}/1/0"
    assert redactor.text(uuid(first)) == new_first.removeprefix("GPU-")
    assert redactor.text(f"MIG-{uuid(first)}") == f"MIG-{new_first.removeprefix('GPU-')}"


@given(KEYS, DIGITS, st.integers(1, 36))
def test_the_beginning_of_a_uuid_is_the_beginning_of_its_replacement(key: bytes, digits: str, length: int) -> None:
    redactor = Redactor(key)
    whole, part = f"GPU-{uuid(digits)}", f"GPU-{uuid(digits)[:length]}"
    assert redactor.text(f"x={part},{whole}") == f"x={redactor.text(whole)[: len(part)]},{redactor.text(whole)}"


@given(KEYS, DIGITS)
def test_case_does_not_matter_to_which_digits_are_chosen(key: bytes, digits: str) -> None:
    assume(not digits.isdecimal())
    redactor = Redactor(key)
    assert redactor.text(uuid(digits).upper()) == redactor.text(uuid(digits)).upper()


@given(st.lists(DIGITS, min_size=1, max_size=4, unique=True), NAMES, NAMES, st.integers(10**9, 10**13))
def test_nothing_of_the_original_is_left(uuids: list[str], node: str, user: str, serial: int) -> None:
    assume(node != user)
    redactor = Redactor()
    redactor.learn_host(f"{node}.example.org")
    redactor.learn_user(user)
    redactor.learn_serial(str(serial))
    words = [f"GPU-{uuid(digits)}" for digits in uuids]
    text = f"{node} {user}@{node}.example.org:/home/{user}/x {' '.join(words)} sn={serial} {node}-{user}_1"
    environ = f"HOME=/home/{user}\0SECRET={user}{node}{serial}\0CUDA_VISIBLE_DEVICES={','.join(words)}\0"
    outputs = [
        redactor.text(text),
        redactor.config(text),
        redactor.environ(environ.encode()).decode(),
        redactor.cmdline(f"/home/{user}/run\0--on={node}\0{words[0]}\0".encode()).decode(),
        *redactor.assignments([f"USER={user}", f"X={node}"]),
    ]
    for original in (node, user, "example.org", *map(uuid, uuids), str(serial)):
        assert not [output for output in outputs if original in output]
    assert len({redactor.text(word) for word in words}) == len(words)


@given(KEYS, st.lists(st.integers(10**6, 10**14), min_size=2, max_size=20, unique=True))
def test_serial_numbers_stay_apart(key: bytes, serials: list[int]) -> None:
    redactor = Redactor(key)
    for serial in serials:
        redactor.learn_serial(str(serial))
    replaced = [redactor.text(str(serial)) for serial in serials]
    assert len({*replaced, *map(str, serials)}) == 2 * len(serials)
    assert [len(new) for new in replaced] == [len(str(old)) for old in serials]


@given(st.binary(max_size=300))
def test_any_environment_and_command_line(data: bytes) -> None:
    redactor = Redactor()
    assert redactor.environ(data).count(b"\0") == data.count(b"\0")
    assert redactor.cmdline(data).count(b"\0") == data.count(b"\0")


@given(st.text(max_size=300))
def test_any_text(text: str) -> None:
    redactor = Redactor()
    redactor.learn_homes(text)
    assert redactor.config(text) is not None
    assert redactor.text(text) == redactor.text(text)


def test_two_records_cannot_be_matched() -> None:
    word = "GPU-98b0e715-3bf7-c370-6d85-c524e4400665"
    assert Redactor().text(word) != Redactor().text(word) != word


def test_amd_ids() -> None:
    redactor = Redactor()
    assert redactor.text("GPU-e4400665c5243bf7") == f"GPU-{redactor.amd_unique_id(0xE4400665C5243BF7):016x}"
    assert redactor.amd_unique_id(0) == 0


def test_words_that_are_no_identifiers() -> None:
    redactor = Redactor()
    for name in ("root", "ubuntu", "nvidia", "", "x", "12345", "host1", "user7"):
        redactor.learn_user(name)
        redactor.learn_host(name)
    text = "GPU-Accelerated GPU-xyz NoDevFiles 0,1 GPU- nvidia 195:255 0000:01:00.0 root host1 535.54.03 GPUs-ab"
    assert redactor.text(text) == text


def test_host_names() -> None:
    redactor = Redactor()
    redactor.learn_host("bagend.shire.example\n")
    redactor.learn_host("rivendell")
    redactor.learn_user("bagend")
    assert redactor.text("bagend.shire.example bagend bagend-2 xbagend rivendell") == (
        "host1.example host1 host1-2 xbagend host2"
    )


def test_names_of_an_earlier_record_stay_apart_from_new_ones() -> None:
    redactor = Redactor()
    redactor.learn_user("user1")
    redactor.learn_user("frodo")
    assert redactor.text("user1 frodo") == "user1 user2"


def test_secrets_in_configuration() -> None:
    redactor = Redactor()
    text = (
        'password = "a" # toml\n'
        "auth: b\n"
        '{"identitytoken": "c", "proxy": "https://d:e@proxy/", "anonymous-auth": false}\n'
        "authentication:\n  anonymous:\n    enabled: true\n"
        'default_runtime_name = "nvidia"\n'
    )
    assert redactor.config(text) == (
        'password = "redacted" # toml\n'
        'auth: "redacted"\n'
        '{"identitytoken": "redacted", "proxy": "https://redacted@proxy/", "anonymous-auth": false}\n'
        "authentication:\n  anonymous:\n    enabled: true\n"
        'default_runtime_name = "nvidia"\n'
    )


def test_variables() -> None:
    redactor = Redactor()
    variables = ["CUDA_VISIBLE_DEVICES=0,1", "NVIDIA_API_KEY=k", "X=k", "E=", "SLURM_JOB_ID=7", "CUDA_VISBLE_DEVICES=0"]
    assert redactor.assignments(variables) == [
        "CUDA_VISIBLE_DEVICES=0,1",
        "NVIDIA_API_KEY=value1",
        "X=value1",
        "E=",
        "SLURM_JOB_ID=7",
        "CUDA_VISBLE_DEVICES=value2",
    ]
