# SPDX-License-Identifier: Apache-2.0
"""ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES and GPU_DEVICE_ORDINAL on AMD GPUs.

Two filters, one behind the other. ROCr reads ROCR_VISIBLE_DEVICES for everything above it; HIP then reads
HIP_VISIBLE_DEVICES, or CUDA_VISIBLE_DEVICES where that is empty, and OpenCL reads GPU_DEVICE_ORDINAL, both as
indexes into what ROCr left. Sources: ROCR-Runtime ``amd_filter_device.cpp`` and ROCclr ``rocdevice.cpp``. ROCm's
pages also name GPU_DEVICE_ORDINAL for HIP; the source reads it for OpenCL alone. Not measured on a GPU.

A GPU whose render node is denied disappears before any index is counted: the kernel driver leaves it out of the
topology it shows (kfd_devcgroup_check_permission in drivers/gpu/drm/amd/amdkfd).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from gpuiso.gpu.model import Gpu
from gpuiso.gpu.visibility.model import (
    CUDA_ERROR_NO_DEVICE,
    CUDA_SUCCESS,
    Kind,
    Reason,
    Token,
    Visibility,
    VisibleGpu,
)
from gpuiso.gpu.visibility.nodes import is_denied, node_paths, of_vendor, usable_node
from gpuiso.gpu.visibility.tokens import c_long, int32, items, walk

__all__ = ["rocm_visible"]

KFD = "/dev/kfd"


def rocm_visible(
    gpus: Sequence[Gpu],
    env: Mapping[str, str],
    *,
    denied: Collection[str] = (),
    api: Literal["hip", "opencl"] = "hip",
) -> Visibility:
    """What a process with this environment sees of AMD's GPUs through HIP or OpenCL.

    ``denied`` are paths or names of nodes: without /dev/kfd nothing is visible.
    """
    host = of_vendor(gpus, "amd")
    paths = node_paths(denied)
    warnings: list[str] = []
    left = [gpu for gpu in host if not is_denied(gpu, paths)]
    if KFD in paths:
        left = []
        warnings.append(f"{KFD} is denied: ROCm starts without any GPU")
    elif not host:
        warnings.append("AMD's driver holds no GPU of this host")
    elif not left:
        warnings.append("every AMD GPU of this host is denied")

    tokens: list[Token] = []
    if "ROCR_VISIBLE_DEVICES" in env:
        reader = _Rocr(left)
        tokens += walk(_items(env["ROCR_VISIBLE_DEVICES"]), reader.lex, reader.resolve)
        left = reader.chosen
    variable, more = _second_filter(env, api)
    warnings += more
    if variable is not None:
        second = _Ordinals(variable, left)
        tokens += walk(_items(env[variable]), second.lex, second.resolve)
        left = second.chosen
    return Visibility(
        api=api,
        cuInit=CUDA_SUCCESS if left else CUDA_ERROR_NO_DEVICE,
        gpus=tuple(VisibleGpu(index, gpu.index or 0, gpu.uuid, usable_node(gpu)) for index, gpu in enumerate(left)),
        tokens=tuple(tokens),
        warnings=tuple(warnings),
    )


def _items(value: str) -> list[str]:
    """The comma-separated items as std::getline gives them: nothing behind a last comma."""
    found = items(value)
    return found[:-1] if len(found) > 1 and not found[-1] else found


def _second_filter(env: Mapping[str, str], api: str) -> tuple[str | None, list[str]]:
    """The variable HIP or OpenCL reads, None if it reads none, and what is worth knowing about the others."""
    hip, cuda = env.get("HIP_VISIBLE_DEVICES"), env.get("CUDA_VISIBLE_DEVICES")
    ordinal = env.get("GPU_DEVICE_ORDINAL")
    if api == "opencl":
        return ("GPU_DEVICE_ORDINAL" if ordinal else None), []
    warnings = []
    if ordinal:
        warnings.append("GPU_DEVICE_ORDINAL is read by OpenCL alone, not by HIP")
    if hip:
        if cuda is not None and cuda != hip:
            warnings.append("CUDA_VISIBLE_DEVICES is not read, because HIP_VISIBLE_DEVICES is set")
        return "HIP_VISIBLE_DEVICES", warnings
    for name, value in (("HIP_VISIBLE_DEVICES", hip), ("CUDA_VISIBLE_DEVICES", cuda)):
        if value == "":
            warnings.append(f"{name} is empty, which HIP takes for unset: it hides nothing")
    return ("CUDA_VISIBLE_DEVICES" if cuda else None), warnings


def _unique_id(gpu: Gpu) -> str:
    """``GPU-`` and 16 lower-case hex digits, as ROCr prints a GPU's unique id; empty if it has none."""
    digits = (gpu.uuid or "").lower().removeprefix("gpu-").removeprefix("0x")
    return f"gpu-{digits:0>16}" if digits.strip("0") else ""


class _Rocr:
    """ROCR_VISIBLE_DEVICES: blanks and case do not matter, and the first bad or repeated token ends the list."""

    def __init__(self, gpus: list[Gpu]) -> None:
        self.gpus = gpus
        self.chosen: list[Gpu] = []

    @staticmethod
    def lex(position: int, text: str) -> Token:
        word = text.strip().upper()
        token = Token("ROCR_VISIBLE_DEVICES", position, text, Kind.WORD)
        if not word:
            return dataclasses.replace(token, kind=Kind.EMPTY)
        if word.startswith("G"):
            return dataclasses.replace(token, kind=Kind.UUID)
        number = c_long(word, 0)
        if number is None or number[1]:
            return token
        return dataclasses.replace(token, kind=Kind.INDEX, number=int32(number[0]))

    def resolve(self, token: Token) -> Token:
        if token.position >= len(self.gpus) > 0:
            return _end(token, Reason.TOO_MANY, f"ROCr reads as many tokens as it finds GPUs: {len(self.gpus)}")
        if token.kind is Kind.EMPTY:
            return _end(token, Reason.EMPTY, "an empty value or token hides every GPU that is not listed before it")
        if token.kind is Kind.WORD:
            return _end(token, Reason.WORD, "it is neither a number nor a GPU UUID, and ends the list")
        if token.kind is Kind.INDEX:
            return _pick(self, token, token.number or 0)
        word = token.text.strip().lower()
        matches = [n for n, gpu in enumerate(self.gpus) if 5 <= len(word) <= 20 and _unique_id(gpu).startswith(word)]
        if len(matches) > 1:
            return _end(token, Reason.AMBIGUOUS_UUID, f"the UUIDs of {len(matches)} GPUs begin like it")
        if not matches:
            return _end(token, Reason.UNKNOWN_UUID, "no GPU this process can open has a UUID that begins so")
        return _pick(self, token, matches[0])

    def repeated(self, token: Token) -> Token:
        return _end(token, Reason.DUPLICATE, "it names a GPU a second time, which ends the list")


class _Ordinals:
    """HIP's and OpenCL's lists: a number must be written as C++ prints it, and a repeated GPU is passed over."""

    def __init__(self, variable: str, gpus: list[Gpu]) -> None:
        self.variable = variable
        self.gpus = gpus
        self.chosen: list[Gpu] = []

    def lex(self, position: int, text: str) -> Token:
        token = Token(self.variable, position, text, Kind.WORD)
        number = c_long(text)
        if not text.strip():
            return dataclasses.replace(token, kind=Kind.EMPTY)
        if "GPU-" in text:
            return dataclasses.replace(token, kind=Kind.UUID)
        if number is None or str(int32(number[0])) != text:
            return token
        return dataclasses.replace(token, kind=Kind.INDEX, number=int(text))

    def resolve(self, token: Token) -> Token:
        if token.kind is Kind.EMPTY:
            return _end(token, Reason.EMPTY, "an empty token ends the list")
        if token.kind is Kind.WORD:
            why = "it is not a plain number (no blanks, signs or leading zeros) nor a GPU UUID, and ends the list"
            return _end(token, Reason.WORD, why)
        if token.kind is Kind.INDEX:
            return _pick(self, token, token.number or 0)
        for place, gpu in enumerate(self.gpus):
            if token.text in _unique_id(gpu).replace("gpu-", "GPU-"):
                return _pick(self, token, place)
        return _end(token, Reason.UNKNOWN_UUID, "no GPU that is left has that UUID")

    def repeated(self, token: Token) -> Token:
        why = "it names a GPU a second time, which changes nothing"
        return dataclasses.replace(token, reason=Reason.DUPLICATE, why=why)


def _pick(reader: _Rocr | _Ordinals, token: Token, number: int) -> Token:
    if number < 0:
        return _end(token, Reason.NEGATIVE, "a negative number ends the list")
    count = len(reader.gpus)
    if number >= count:
        left = f"{count} are left, from 0 to {count - 1}" if count else "none is left"
        return _end(token, Reason.OUT_OF_RANGE, f"there is no GPU {number} to select: {left}")
    gpu = reader.gpus[number]
    token = dataclasses.replace(token, physical=gpu.index)
    if gpu in reader.chosen:
        return reader.repeated(token)
    reader.chosen.append(gpu)
    return token


def _end(token: Token, reason: Reason, why: str) -> Token:
    return dataclasses.replace(token, reason=reason, why=why, ends=True)
