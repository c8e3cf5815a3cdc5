# SPDX-License-Identifier: Apache-2.0
"""What a process sees, and what became of every token of the variables that decide it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

__all__ = [
    "CUDA_ERROR_INVALID_DEVICE",
    "CUDA_ERROR_NO_DEVICE",
    "CUDA_ERROR_UNKNOWN",
    "CUDA_SUCCESS",
    "Kind",
    "Reason",
    "Token",
    "Visibility",
    "VisibleGpu",
]

CUDA_SUCCESS = 0
CUDA_ERROR_NO_DEVICE = 100
CUDA_ERROR_INVALID_DEVICE = 101
CUDA_ERROR_UNKNOWN = 999


class Kind(enum.Enum):
    """What a token looks like to the library that reads it."""

    INDEX = "index"
    UUID = "uuid"
    MIG = "mig"
    EMPTY = "empty"
    WORD = "word"


class Reason(enum.Enum):
    """Why a token shows no GPU."""

    EMPTY = "empty"
    NEGATIVE = "negative"
    WORD = "word"
    OUT_OF_RANGE = "out-of-range"
    UNKNOWN_UUID = "unknown-uuid"
    AMBIGUOUS_UUID = "ambiguous-uuid"
    DENIED = "denied"
    """The UUID exists on the host, but the process may not open the GPU's node."""
    MIXED_KIND = "mixed-kind"
    DUPLICATE = "duplicate"
    NO_MIG = "no-mig"
    UNKNOWN_MIG = "unknown-mig"
    SINGLE_MIG = "single-mig"
    """A driver before R570 gives a process one MIG device."""
    SAME_GPU_INSTANCE = "same-gpu-instance"
    TOO_MANY = "too-many"
    SUBDEVICE = "subdevice"
    MALFORMED = "malformed"
    AFTER_END = "after-end"
    """An earlier token ended the list."""
    REFUSED = "refused"
    """The token is fine, but another one makes the library refuse the whole list."""


@dataclass(frozen=True, slots=True)
class Token:
    """One item of a comma-separated variable, in its place.

    ``number`` is the index as read, None for other kinds. ``rest`` is what the library leaves unread behind
    the part it understood (``-2`` of ``0-2``). ``physical`` is the GPU the token names on the host, also
    where it then shows nothing (a duplicate, a denied GPU). ``reason`` and ``why`` are None for a token that took
    effect. ``ends`` tells whether the list ended here.
    """

    variable: str
    position: int
    text: str
    kind: Kind
    number: int | None = None
    rest: str = ""
    physical: int | None = None
    reason: Reason | None = None
    why: str | None = None
    ends: bool = False


@dataclass(frozen=True, slots=True)
class VisibleGpu:
    """A device as the process counts it.

    ``index`` is the process's own number, ``physical`` the number the vendor's driver gives the GPU on the
    whole host in PCI order, denied GPUs included. ``mig`` is a MIG device's UUID, or ``GI/CI`` where it has
    none. ``tiles`` names the tiles of an Intel GPU that are exposed, empty for the whole GPU.
    """

    index: int
    physical: int
    uuid: str | None
    node: str | None
    mig: str | None = None
    tiles: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Visibility:
    """What one process sees through one programming interface.

    ``api`` is ``cuda``, ``hip``, ``opencl`` or ``level-zero``. ``cuInit`` is what CUDA's call of that name
    returns (0, 100, 101, 999); for the others 0 if anything is visible and 100 if nothing is. Unless it is 0,
    ``gpus`` is empty.
    """

    api: str
    cuInit: int  # noqa: N815 - the driver's own name
    gpus: tuple[VisibleGpu, ...]
    tokens: tuple[Token, ...] = ()
    warnings: tuple[str, ...] = field(default=())

    @property
    def ignored(self) -> tuple[tuple[str, str], ...]:
        """Every token that shows no GPU, with one sentence that says why."""
        return tuple((token.text, token.why) for token in self.tokens if token.why is not None)
