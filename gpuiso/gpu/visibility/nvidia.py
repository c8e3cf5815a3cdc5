# SPDX-License-Identifier: Apache-2.0
"""NVIDIA_VISIBLE_DEVICES and NVIDIA_DRIVER_CAPABILITIES: what NVIDIA's runtime puts into a container.

They are read once, when a container starts, by the container toolkit and not by CUDA. Sources: the toolkit's
documentation (1.20), its ``internal/config/image`` package, and libnvidia-container's ``select_devices``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpuiso.gpu.model import Gpu, MigDevice
from gpuiso.gpu.visibility.mig import mig_name
from gpuiso.gpu.visibility.model import Kind, Reason, Token, VisibleGpu
from gpuiso.gpu.visibility.nodes import of_vendor, usable_node
from gpuiso.gpu.visibility.tokens import c_long, items, quoted, refused

__all__ = ["CAPABILITIES", "Capabilities", "Injection", "driver_capabilities", "nvidia_visible"]

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
CAPABILITIES = frozenset({"compat32", "compute", "display", "graphics", "ngx", "utility", "video"})
"""What config.toml's supported-driver-capabilities allows by default."""
DEFAULT_CAPABILITIES = frozenset({"utility", "compute"})

_PCI = re.compile(r"([0-9a-fA-F]{1,8}):([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})\.")
_GPU_MIG = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")
_CDI = "nvidia.com/gpu="


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What NVIDIA_DRIVER_CAPABILITIES asks for. The runtime refuses the container if ``unsupported`` has any."""

    granted: frozenset[str]
    unsupported: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Injection:
    """What the runtime puts into a container.

    ``mode`` is what the value amounts to: ``void`` injects nothing, ``none`` the driver's files alone. ``gpus``
    carry the numbers they get inside the container. ``fails`` tells why the container would not start, or None.
    """

    mode: Literal["all", "list", "none", "void"]
    gpus: tuple[VisibleGpu, ...]
    capabilities: Capabilities
    tokens: tuple[Token, ...] = ()
    fails: str | None = None

    @property
    def driver_files(self) -> bool:
        return self.mode != "void" and self.fails is None

    @property
    def ignored(self) -> tuple[tuple[str, str], ...]:
        """Every token that adds no GPU, with one sentence that says why."""
        return tuple((token.text, token.why) for token in self.tokens if token.why is not None)


def nvidia_visible(gpus: Sequence[Gpu], env: Mapping[str, str]) -> Injection:
    """What a container with this environment gets from NVIDIA's runtime on a host with these GPUs.

    Assumes that the runtime is used and that the variable counts (config.toml may forbid it for unprivileged
    containers).
    """
    host = of_vendor(gpus, "nvidia")
    capabilities = driver_capabilities(env)
    value = env.get(VARIABLE)
    if value is None:
        # The runtime gives everything to old images, which name their CUDA but not what they need of a driver.
        legacy = _is_legacy(env)
        everything = _numbered(_everything(host)) if legacy else ()
        return Injection("all" if legacy else "void", everything, capabilities)
    tokens = [_lex(position, text) for position, text in enumerate(items(value))]
    words = {token.text.strip() for token in tokens}
    mode: Literal["all", "none", "void"] | None = None
    if "void" in words or words == {""}:
        mode = "void"
    elif "none" in words:
        mode = "none"
    elif words & {"all", f"{_CDI}all"}:
        mode = "all"
    if mode is not None:
        return _special(mode, tokens, host, capabilities)

    chosen: list[tuple[Gpu, MigDevice | None]] = []
    tokens = [_resolve(token, host, chosen) for token in tokens]
    unknown = [token for token in tokens if token.reason in (Reason.WORD, Reason.OUT_OF_RANGE, Reason.UNKNOWN_UUID)]
    if unknown:
        names = ", ".join(quoted(token.text) for token in unknown)
        tokens = refused(tokens, "another token names no GPU, so the container does not start")
        return Injection("list", (), capabilities, tuple(tokens), fails=f"unknown device {names}")
    return Injection("list", _numbered(chosen), capabilities, tuple(tokens))


def driver_capabilities(env: Mapping[str, str]) -> Capabilities:
    """The driver capabilities a container with this environment gets: the value replaces the default."""
    value = env.get("NVIDIA_DRIVER_CAPABILITIES")
    if not value:
        return Capabilities(CAPABILITIES if value is None and _is_legacy(env) else DEFAULT_CAPABILITIES)
    asked = [word.strip() for word in items(value) if word.strip()]
    if "all" in asked:
        return Capabilities(CAPABILITIES)
    granted = CAPABILITIES.intersection(asked)
    if "display" in granted:
        granted |= {"graphics"}
    unsupported = tuple(word for word in dict.fromkeys(asked) if word not in CAPABILITIES)
    return Capabilities(granted, unsupported)


def _is_legacy(env: Mapping[str, str]) -> bool:
    return bool(env.get("CUDA_VERSION")) and not env.get("NVIDIA_REQUIRE_CUDA")


def _special(
    mode: Literal["all", "none", "void"], tokens: list[Token], host: list[Gpu], capabilities: Capabilities
) -> Injection:
    """A list with ``all``, ``none`` or ``void`` in it, which outweighs everything else."""
    meaning = {
        "all": "the list contains 'all', which stands for every GPU",
        "none": "the list contains 'none', which stands for no GPU but the driver's files",
        "void": "the list is empty or contains 'void': the runtime adds nothing",
    }[mode]
    marked = [
        token
        if mode == "all" and token.text.strip().removeprefix(_CDI) == "all"
        else dataclasses.replace(token, reason=_special_reason(token), why=meaning)
        for token in tokens
    ]
    return Injection(mode, _numbered(_everything(host)) if mode == "all" else (), capabilities, tuple(marked))


def _special_reason(token: Token) -> Reason:
    if token.kind is Kind.EMPTY:
        return Reason.EMPTY
    return Reason.WORD if token.kind is Kind.WORD else Reason.REFUSED


def _lex(position: int, text: str) -> Token:
    word = text.strip().removeprefix(_CDI)
    token = Token(VARIABLE, position, text, Kind.WORD)
    number = c_long(word)
    if not word:
        return dataclasses.replace(token, kind=Kind.EMPTY)
    if number is not None and not number[1]:
        return dataclasses.replace(token, kind=Kind.INDEX, number=number[0])
    if word[:4].upper() == "GPU-" or _PCI.match(word):
        return dataclasses.replace(token, kind=Kind.UUID)
    if word[:4].upper() == "MIG-" or _GPU_MIG.match(word):
        return dataclasses.replace(token, kind=Kind.MIG)
    return token


def _resolve(token: Token, host: list[Gpu], chosen: list[tuple[Gpu, MigDevice | None]]) -> Token:
    if token.kind is Kind.EMPTY:
        return dataclasses.replace(token, reason=Reason.EMPTY, why="an empty token is passed over")
    found = _find(token, host)
    if isinstance(found, Token):
        return found
    token = dataclasses.replace(token, physical=found[0].index)
    if found in chosen:
        return dataclasses.replace(token, reason=Reason.DUPLICATE, why="it is listed already, which changes nothing")
    chosen.append(found)
    return token


def _find(token: Token, host: list[Gpu]) -> tuple[Gpu, MigDevice | None] | Token:
    word = token.text.strip().removeprefix(_CDI)
    if token.kind is Kind.INDEX:
        number = token.number or 0
        if 0 <= number < len(host):
            return host[number], None
        last = f"the host has {len(host)}, from 0 to {len(host) - 1}" if host else "the host has none"
        return dataclasses.replace(token, reason=Reason.OUT_OF_RANGE, why=f"there is no GPU {number}: {last}")
    if token.kind is Kind.UUID:
        address = _address(word)
        for gpu in host:
            if (gpu.uuid or "").lower() == word.lower() or (address is not None and gpu.pci_address == address):
                return gpu, None
        why = "no GPU of this host has that UUID or address (a UUID must be written in full here)"
        return dataclasses.replace(token, reason=Reason.UNKNOWN_UUID, why=why)
    if token.kind is Kind.MIG:
        place = _GPU_MIG.match(word)
        for index, gpu in enumerate(host):
            for number, mig in enumerate(gpu.mig_devices):
                if (mig.uuid or "").lower() == word.lower() or (
                    place is not None and (int(place[1]), int(place[2])) == (index, number)
                ):
                    return gpu, mig
        return dataclasses.replace(token, reason=Reason.UNKNOWN_UUID, why="no MIG device of this host is called so")
    return dataclasses.replace(token, reason=Reason.WORD, why="it is no index, UUID, MIG device or PCI address")


def _address(word: str) -> str | None:
    match = _PCI.match(word)
    return None if match is None else f"{int(match[1], 16):04x}:{int(match[2], 16):02x}:{int(match[3], 16):02x}.0"


def _everything(host: list[Gpu]) -> list[tuple[Gpu, MigDevice | None]]:
    devices: list[tuple[Gpu, MigDevice | None]] = []
    for gpu in host:
        devices.extend((gpu, mig) for mig in gpu.mig_devices)
        if not gpu.mig_devices:
            devices.append((gpu, None))
    return devices


def _numbered(devices: list[tuple[Gpu, MigDevice | None]]) -> tuple[VisibleGpu, ...]:
    """In PCI order, whatever order they were listed in: the container's own driver counts them afresh."""
    order = sorted(devices, key=lambda d: (d[0].index or 0, (d[1].gpu_instance, d[1].compute_instance) if d[1] else ()))
    return tuple(
        VisibleGpu(number, gpu.index or 0, gpu.uuid, usable_node(gpu), None if mig is None else mig_name(mig))
        for number, (gpu, mig) in enumerate(order)
    )
