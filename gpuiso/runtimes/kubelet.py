# SPDX-License-Identifier: Apache-2.0
"""The kubelet's settings that decide whether containers keep their GPUs (kubelet.config.k8s.io/v1beta1)."""

from __future__ import annotations

from collections.abc import Iterator

from gpuiso.runtimes.engine import Engine, Place, Problem, Request, Setting, exists, release
from gpuiso.runtimes.formats import Document, Path, lookup
from gpuiso.runtimes.formats.yaml import YamlDocument
from gpuiso.runtimes.keys import Key, KeyTable, one_of

__all__ = ["KUBELET"]

CONFIG = "/var/lib/kubelet/config.yaml"
STATE = "/var/lib/kubelet/cpu_manager_state"
_POLICY: Path = ("cpuManagerPolicy",)
_CDI: Path = ("featureGates", "DevicePluginCDIDevices")
#: Beta and on since 1.29, always on since 1.31 (KEP-4009); a gate that is gone keeps the kubelet from starting.
_CDI_DEFAULT = (1, 29)
_CDI_ALWAYS = (1, 31)

KEYS = KeyTable(
    (
        Key(
            _POLICY,
            "text",
            "static pins containers to CPUs by updating them as they run: device rules that a hook wrote are lost then",
            "none",
            one_of("none", "static"),
        ),
        Key(("cpuManagerReconcilePeriod",), "text", "how often pinned containers are updated", "10s"),
        Key(
            ("topologyManagerPolicy",),
            "text",
            "whether CPUs and devices must be of one NUMA node",
            "none",
            one_of("none", "best-effort", "restricted", "single-numa-node"),
        ),
        Key(
            ("topologyManagerScope",),
            "text",
            "whether that is decided a container or a pod",
            "container",
            one_of("container", "pod"),
        ),
        Key(
            ("cgroupDriver",),
            "text",
            "who makes cgroups; the runtime must agree",
            "cgroupfs",
            one_of("systemd", "cgroupfs"),
        ),
        Key(_CDI, "boolean", "device plugins may name CDI devices (since 1.28; on since 1.29)"),
        Key(("featureGates", "*"), "boolean", "a switch of the kubelet"),
    )
)


def _place(request: Request) -> Place:
    initial = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    return Place(request.file or CONFIG, YamlDocument, initial=initial)


def _cdi(request: Request, place: Place) -> Iterator[Setting]:
    installed = release(request.host, "kubelet", "--version")
    if installed is None or installed < _CDI_DEFAULT:
        yield Setting(_CDI, True)


def _problems(request: Request, place: Place, document: Document) -> Iterator[Problem]:
    if lookup(document.data, _POLICY) == "static":
        yield Problem(
            "warning",
            "cpuManagerPolicy is static: containers that got their GPUs from NVIDIA's hook lose them at the first"
            " update. The device plugin must pass the nodes (PASS_DEVICE_SPECS=true) or use CDI"
            " (DEVICE_LIST_STRATEGY=cdi-cri)",
            place.file,
            document.line(_POLICY),
        )
    state = exists(request.host, STATE)
    if state and lookup(document.data, _POLICY) is not None:
        yield Problem(
            "info",
            f"after a change of cpuManagerPolicy the kubelet starts only once {STATE} is removed (drain first)",
            place.file,
            document.line(_POLICY),
        )
    installed = release(request.host, "kubelet", "--version")
    if lookup(document.data, _CDI) is not None and installed is not None and installed >= _CDI_ALWAYS:
        yield Problem(
            "error" if lookup(document.data, _CDI) is False else "warning",
            f"featureGates.DevicePluginCDIDevices is always on in {installed[0]}.{installed[1]} and later unknown:"
            " remove the line",
            place.file,
            document.line(_CDI),
        )


KUBELET = Engine(
    name="kubelet",
    title="the kubelet",
    keys=KEYS,
    presets={"cdi": _cdi},
    place=_place,
    problems=_problems,
    services=("kubelet.service",),
    restart_says="containers go on running",
)
