# SPDX-License-Identifier: Apache-2.0
"""What to generate, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuiso.cdi.spec import Spec

__all__ = ["HOOKS", "MODES", "STRATEGIES", "Generated", "Hooks", "Mode", "Options", "Strategy"]

Mode = Literal["auto", "nvml", "management", "imex", "gds", "mofed", "gdrcopy", "nvswitch", "wsl", "amd", "intel"]
Strategy = Literal["index", "uuid", "type-index"]
Hooks = Literal["auto", "gpuiso", "nvidia", "none"]

MODES: tuple[Mode, ...] = (
    "auto",
    "nvml",
    "management",
    "imex",
    "gds",
    "mofed",
    "gdrcopy",
    "nvswitch",
    "wsl",
    "amd",
    "intel",
)
STRATEGIES: tuple[Strategy, ...] = ("index", "uuid", "type-index")
HOOKS: tuple[Hooks, ...] = ("auto", "gpuiso", "nvidia", "none")


@dataclass(frozen=True, slots=True)
class Options:
    """``vendor`` and ``device_class`` default to what suits the mode.

    ``driver_root`` is where the driver's files lie (a container's view of them starts below it), ``dev_root``
    where its nodes lie. ``hook_path`` names NVIDIA's hook program where it cannot be found by itself. ``grants`` has
    gpuiso's hook hold containers to /etc/gpuiso/policy.d, whoever does the rest of the work.
    """

    mode: Mode = "auto"
    vendor: str | None = None
    device_class: str | None = None
    strategies: tuple[Strategy, ...] = ("index", "uuid")
    driver_root: str = "/"
    dev_root: str = "/"
    hooks: Hooks = "auto"
    hook_path: str | None = None
    ldconfig_path: str | None = None
    all_device: bool = True
    additional_gids: bool = True
    numbers: bool = True
    grants: bool = False


@dataclass(frozen=True, slots=True)
class Generated:
    """``messages`` say what is missing or not as it should be; none of them on a host where all is well."""

    spec: Spec
    messages: tuple[str, ...]
