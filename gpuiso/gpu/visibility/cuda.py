# SPDX-License-Identifier: Apache-2.0
"""CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, as the CUDA driver reads them.

Measured on four H200 with driver 580.159.04, one process a case; docs/visibility.md tells the rules, and the
rows are in tests/data/visibility; tests/gpu asks the driver again. Not measured: an ambiguous prefix (from PyTorch's
tests against driver 525), and MIG.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gpuiso.gpu.model import Gpu
from gpuiso.gpu.visibility.mig import (
    MAX_MIG_DEVICES,
    Device,
    Refusal,
    enumerate_devices,
    find_mig,
    many_mig,
    mig_name,
    uuid_spelling,
)
from gpuiso.gpu.visibility.model import (
    CUDA_ERROR_INVALID_DEVICE,
    CUDA_ERROR_NO_DEVICE,
    CUDA_ERROR_UNKNOWN,
    CUDA_SUCCESS,
    Kind,
    Reason,
    Token,
    Visibility,
    VisibleGpu,
)
from gpuiso.gpu.visibility.nodes import NVIDIA_UVM, NVIDIACTL, is_denied, node_paths, of_vendor, usable_node
from gpuiso.gpu.visibility.tokens import c_ulong, hex_run, int32, items, quoted, refused, unread_warnings, walk

__all__ = ["CudaList", "cuda_visible", "lex", "parse"]

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
ORDERS = ("", "FASTEST_FIRST", "PCI_BUS_ID")


@dataclass(frozen=True, slots=True)
class CudaList:
    """What became of a CUDA_VISIBLE_DEVICES: its tokens, the devices it selects, and what cuInit returns."""

    tokens: tuple[Token, ...]
    devices: tuple[Device, ...]
    cuInit: int  # noqa: N815 - the driver's own name


def cuda_visible(
    gpus: Sequence[Gpu],
    env: Mapping[str, str],
    *,
    denied: Collection[str] = (),
    driver_version: str | None = None,
) -> Visibility:
    """What a process with this environment sees through CUDA.

    ``gpus`` are the host's; only those of NVIDIA's driver count. ``denied`` are paths or names of nodes the
    process may not open: /dev/nvidiactl makes cuInit return 100, /dev/nvidia-uvm 999, and a denied GPU
    disappears before any index is counted.
    """
    host = of_vendor(gpus, "nvidia")
    paths = node_paths(denied)
    allowed = [gpu for gpu in host if not is_denied(gpu, paths)]
    devices = enumerate_devices(allowed, paths, driver_version)
    value = env.get(VARIABLE)
    if value is None:
        listed = CudaList((), tuple(devices), CUDA_SUCCESS if devices else CUDA_ERROR_NO_DEVICE)
    else:
        listed = parse(value, host, denied=paths, driver_version=driver_version)

    cu_init, warnings = _init(listed.cuInit, env.get(ORDER, ""), paths)
    if not host:
        warnings.append("NVIDIA's driver holds no GPU of this host")
    elif not allowed:
        warnings.append("every NVIDIA GPU of this host is denied")
    elif cu_init == CUDA_SUCCESS:
        warnings += _order_warnings(devices, listed, env)
        warnings += _mig_warnings(devices, listed, driver_version)
    warnings += unread_warnings(listed.tokens)
    shown = listed.devices if cu_init == CUDA_SUCCESS else ()
    return Visibility(
        api="cuda",
        cuInit=cu_init,
        gpus=tuple(_visible(index, device) for index, device in enumerate(shown)),
        tokens=listed.tokens,
        warnings=tuple(warnings),
    )


def _visible(index: int, device: Device) -> VisibleGpu:
    return VisibleGpu(
        index=index,
        physical=device.gpu.index or 0,
        uuid=device.gpu.uuid,
        node=usable_node(device.gpu),
        mig=None if device.mig is None else mig_name(device.mig),
    )


def _init(listed: int, order: str, denied: Collection[str]) -> tuple[int, list[str]]:
    """What cuInit returns, and why where the list is not the reason."""
    if NVIDIACTL in denied:
        return CUDA_ERROR_NO_DEVICE, [f"{NVIDIACTL} is denied: cuInit fails with 100, whatever the variables say"]
    if NVIDIA_UVM in denied:
        return CUDA_ERROR_UNKNOWN, [f"{NVIDIA_UVM} is denied: cuInit fails with 999, whatever the variables say"]
    if order not in ORDERS:
        why = f"{ORDER}={quoted(order)} is neither PCI_BUS_ID nor FASTEST_FIRST: cuInit fails with 101"
        return CUDA_ERROR_INVALID_DEVICE, [why]
    return listed, []


def _order_warnings(devices: Sequence[Device], listed: CudaList, env: Mapping[str, str]) -> list[str]:
    counts = VARIABLE not in env or any(token.kind is Kind.INDEX for token in listed.tokens)
    names = {device.gpu.name for device in devices if device.gpu.name is not None}
    if env.get(ORDER) == "PCI_BUS_ID" or len(names) < 2 or not counts:
        return []
    return [
        "the GPUs differ and CUDA counts the fastest first, an order it does not publish: the numbers"
        f" shown are PCI order, which {ORDER}=PCI_BUS_ID makes certain"
    ]


def _mig_warnings(devices: Sequence[Device], listed: CudaList, driver_version: str | None) -> list[str]:
    if not any(device.gpu.mig_enabled for device in devices):
        return []
    warnings = []
    if driver_version is None:
        warnings.append("the driver's version is not known: MIG devices are counted as R570 and later do")
    if any(token.kind in (Kind.INDEX, Kind.UUID) and token.reason is None for token in listed.tokens):
        warnings.append("NVIDIA does not document what an index or a GPU UUID selects in MIG mode: use MIG-<UUID>")
    if uuid_spelling(driver_version) and any(token.text.startswith("MIG-GPU-") for token in listed.tokens):
        warnings.append("MIG-<GPU-UUID>/GI/CI is the spelling of drivers before R470: use MIG-<UUID>")
    return warnings


def lex(position: int, text: str) -> Token:
    """What CUDA takes a token for, before any GPU is looked at."""
    number = c_ulong(text)
    if number is not None:
        return Token(VARIABLE, position, text, Kind.INDEX, number=int32(number[0]), rest=number[1])
    if not text.strip():
        return Token(VARIABLE, position, text, Kind.EMPTY)
    if text.startswith("MIG-"):
        return Token(VARIABLE, position, text, Kind.MIG)
    run = hex_run(text.removeprefix("GPU-")) if text.startswith("GPU-") else ""
    if run:
        # A UUID has 36 characters; CUDA does not look further.
        return Token(VARIABLE, position, text, Kind.UUID, rest=text[len("GPU-") + len(run[:36]) :])
    return Token(VARIABLE, position, text, Kind.WORD)


def parse(
    value: str,
    gpus: Sequence[Gpu],
    *,
    denied: Collection[str] = (),
    driver_version: str | None = None,
) -> CudaList:
    """Read a CUDA_VISIBLE_DEVICES against the GPUs of a host, token by token.

    ``cuInit`` is what the list alone leads to: 0, 100 where it selects nothing, 101 where it repeats one.
    """
    host = of_vendor(gpus, "nvidia")
    reader = _Reader(host, node_paths(denied), driver_version)
    tokens = walk(items(value), lex, reader.resolve)
    if any(token.reason is Reason.DUPLICATE for token in tokens):
        why = "another token names a device twice, so CUDA refuses the whole list"
        return CudaList(tuple(refused(tokens, why)), (), CUDA_ERROR_INVALID_DEVICE)
    code = CUDA_SUCCESS if reader.chosen else CUDA_ERROR_NO_DEVICE
    return CudaList(tuple(tokens), tuple(reader.chosen), code)


@dataclass(slots=True)
class _Reader:
    """One pass over a list: what it has selected so far decides what the next token means."""

    host: list[Gpu]
    denied: frozenset[str]
    driver_version: str | None
    allowed: list[Gpu] = field(init=False)
    devices: list[Device] = field(init=False)
    chosen: list[Device] = field(init=False, default_factory=list)
    kind: Kind | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.allowed = [gpu for gpu in self.host if not is_denied(gpu, self.denied)]
        self.devices = enumerate_devices(self.allowed, self.denied, self.driver_version)

    def resolve(self, token: Token) -> Token:
        found = self._find(token)
        if isinstance(found, Refusal):
            physical = self._denied_gpu(token) if found.reason is Reason.DENIED else None
            ends = found.reason is not Reason.SAME_GPU_INSTANCE
            return dataclasses.replace(token, physical=physical, reason=found.reason, why=found.why, ends=ends)
        token = dataclasses.replace(token, physical=found.gpu.index)
        refusal = self._unfit(found)
        if refusal is not None:
            ends = refusal.reason is not Reason.SAME_GPU_INSTANCE
            return dataclasses.replace(token, reason=refusal.reason, why=refusal.why, ends=ends)
        self.kind = self.kind or token.kind
        self.chosen.append(found)
        return token

    def _find(self, token: Token) -> Device | Refusal:
        """The device a token names, whatever came before it except for the kind."""
        if token.kind is Kind.EMPTY:
            return Refusal(Reason.EMPTY, "an empty token ends the list")
        if token.kind is Kind.WORD:
            return Refusal(Reason.WORD, _word(token.text))
        if self.kind is not None and not self._mixes(token.kind):
            why = f"the list began with {_KINDS[self.kind]}, and {_KINDS[token.kind]} ends it"
            return Refusal(Reason.MIXED_KIND, why)
        if token.kind is Kind.MIG:
            return find_mig(token.text, self.allowed, self.denied, self.driver_version)
        if token.kind is Kind.UUID:
            return self._find_uuid(token.text)
        return self._find_index(token)

    def _mixes(self, kind: Kind) -> bool:
        # R570 and later enumerate whole GPUs beside MIG devices, and both are named by UUID.
        return kind is self.kind or (many_mig(self.driver_version) and {kind, self.kind} == {Kind.UUID, Kind.MIG})

    def _find_index(self, token: Token) -> Device | Refusal:
        number = token.number or 0
        if number < 0:
            return Refusal(Reason.NEGATIVE, f"CUDA reads it as {number}, and a negative number ends the list")
        count = len(self.devices)
        if number < count:
            return self.devices[number]
        if len(hex_run(token.text)) == 36:
            return Refusal(Reason.OUT_OF_RANGE, f"it is read as device {number}: a GPU UUID starts with GPU-")
        can = "can open no GPU" if not count else f"counts {count}, from 0 to {count - 1}"
        hidden = len(self.host) - len(self.allowed)
        after = f" now that {hidden} of {len(self.host)} are denied" if hidden else ""
        return Refusal(Reason.OUT_OF_RANGE, f"there is no device {number}: this process {can}{after}")

    def _find_uuid(self, text: str) -> Device | Refusal:
        named = self._named(text, self.allowed)
        if len(named) > 1:
            return Refusal(Reason.AMBIGUOUS_UUID, f"the UUIDs of {len(named)} GPUs begin like {quoted(text)}")
        if named:
            for device in self.devices:
                if device.gpu is named[0]:
                    return device
            return Refusal(Reason.NO_MIG, f"GPU {named[0].index} is in MIG mode and CUDA enumerates none of it")
        gone = self._named(text, self.host)
        if len(gone) == 1:
            return Refusal(Reason.DENIED, f"it is GPU {gone[0].index}, whose node {usable_node(gone[0])} is denied")
        return Refusal(Reason.UNKNOWN_UUID, "no GPU of this host has a UUID that begins so")

    def _denied_gpu(self, token: Token) -> int | None:
        named = self._named(token.text, self.host) if token.kind is Kind.UUID else []
        return named[0].index if named else None

    @staticmethod
    def _named(text: str, gpus: Sequence[Gpu]) -> list[Gpu]:
        prefix = f"gpu-{hex_run(text.removeprefix('GPU-'))[:36]}".lower()
        return [gpu for gpu in gpus if (gpu.uuid or "").lower().startswith(prefix)]

    def _unfit(self, found: Device) -> Refusal | None:
        """Why a device that exists cannot join the ones selected so far."""
        if found in self.chosen:
            why = f"it names {_device(found)} a second time, so cuInit fails with 101"
            return Refusal(Reason.DUPLICATE, why)
        if found.mig is None and not any(device.mig for device in self.chosen):
            return None
        partitions = [device for device in self.chosen if device.mig is not None]
        if not many_mig(self.driver_version) and self.chosen:
            return Refusal(Reason.SINGLE_MIG, "drivers before R570 give a process one MIG device and nothing beside it")
        if found.mig is not None and any(
            device.gpu is found.gpu and device.mig is not None and device.mig.gpu_instance == found.mig.gpu_instance
            for device in partitions
        ):
            instance = f"GPU instance {found.mig.gpu_instance}"
            why = f"{instance} is listed already, and CUDA takes one compute instance of each"
            return Refusal(Reason.SAME_GPU_INSTANCE, why)
        if found.mig is not None and len(partitions) >= MAX_MIG_DEVICES:
            return Refusal(Reason.TOO_MANY, f"CUDA enumerates at most {MAX_MIG_DEVICES} MIG devices")
        return None


_KINDS = {Kind.INDEX: "an index", Kind.UUID: "a UUID", Kind.MIG: "a MIG device"}


def _device(device: Device) -> str:
    name = f"GPU {device.gpu.index}"
    return name if device.mig is None else f"MIG device {mig_name(device.mig)} of {name}"


def _word(text: str) -> str:
    stripped = text.strip().strip("'\"")
    if stripped.lower().startswith("gpu-") or (text.startswith("GPU") and hex_run(text[3:])):
        return "a GPU UUID starts with GPU- in capitals, nothing before it and a hex digit behind it"
    if len(hex_run(stripped)) == 36:
        return "a GPU UUID starts with GPU-"
    if stripped[:1].isdecimal() and stripped != text.strip():
        return "the quotes are part of the value, and a token that starts with a quote is a plain word"
    if stripped.lower() in ("all", "none", "void"):
        return "it means something in NVIDIA_VISIBLE_DEVICES; to CUDA it is a plain word, which ends the list"
    return "it is neither an index nor a UUID, and a plain word ends the list"
