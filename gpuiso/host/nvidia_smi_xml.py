# SPDX-License-Identifier: Apache-2.0
"""``nvidia-smi -q -x`` as NVML's view, for records that hold no nvml.json.

The elements are those of nvsmi_device_v13.dtd. The parser is fed from a stranger's file: documents that declare
entities or bring their own DTD are refused, nothing external is fetched, and depth is bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NoReturn
from xml.parsers import expat

from gpuiso.errors import BadInput

__all__ = ["nvml_from_xml"]

_MAX_DEPTH = 64
_MIB = re.compile(r"(\d{1,12}) MiB")


@dataclass(slots=True)
class _Element:
    attributes: dict[str, str] = field(default_factory=dict)
    text: str = ""
    children: dict[str, list[_Element]] = field(default_factory=dict)

    def find(self, path: str) -> str | None:
        """The text at ``a/b``, None for a missing element and for nvidia-smi's own words for "not known"."""
        elements = [self]
        for name in path.split("/"):
            elements = elements[0].children.get(name, [])
            if not elements:
                return None
        text = elements[0].text.strip()
        return None if text in ("", "N/A", "[N/A]", "None") else text

    def all(self, path: str) -> list[_Element]:
        elements = [self]
        for name in path.split("/"):
            elements = [child for element in elements for child in element.children.get(name, [])]
        return elements


def nvml_from_xml(data: bytes, file: str) -> dict[str, Any]:
    """The form of tools/nvml.json; what nvidia-smi does not print is null.

    :raises BadInput: not XML, or not nvidia-smi's.
    """
    log = _parse(data, file)
    return {
        "driver_version": log.find("driver_version"),
        "cuda_version": log.find("cuda_version"),
        "gpus": [_gpu(index, gpu) for index, gpu in enumerate(log.all("gpu"))],
    }


def _gpu(index: int, gpu: _Element) -> dict[str, Any]:
    return {
        "index": index,
        "uuid": gpu.find("uuid"),
        "name": gpu.find("product_name"),
        "pci_bus_id": gpu.attributes.get("id"),
        "minor": _integer(gpu.find("minor_number")),
        "memory_total_mib": _mib(gpu.find("fb_memory_usage/total")),
        "memory_used_mib": _mib(gpu.find("fb_memory_usage/used")),
        "mig_mode": gpu.find("mig_mode/current_mig"),
        "compute_mode": gpu.find("compute_mode"),
        "persistence_mode": gpu.find("persistence_mode"),
        "ecc_mode": gpu.find("ecc_mode/current_ecc"),
        "processes": [
            {
                "pid": _integer(process.find("pid")),
                "type": process.find("type"),
                "used_memory_mib": _mib(process.find("used_memory")),
            }
            for process in gpu.all("processes/process_info")
            if _integer(process.find("pid")) is not None
        ],
        "mig_devices": [
            {
                "uuid": None,
                "gpu_instance": _integer(device.find("gpu_instance_id")),
                "compute_instance": _integer(device.find("compute_instance_id")),
                "profile": None,
            }
            for device in gpu.all("mig_devices/mig_device")
        ],
    }


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 12 else None


def _mib(text: str | None) -> int | None:
    match = _MIB.fullmatch(text) if text is not None else None
    return None if match is None else int(match[1])


def _parse(data: bytes, file: str) -> _Element:
    document = _Element()
    path = [document]
    parser = expat.ParserCreate()

    def fail(problem: str) -> NoReturn:
        raise BadInput(problem, file=file, line=parser.CurrentLineNumber)

    def doctype(_name: str, _system: str | None, _public: str | None, has_internal_subset: int) -> None:
        if has_internal_subset:
            fail("brings its own document type, which nvidia-smi never does")

    def start(name: str, attributes: dict[str, str]) -> None:
        if len(path) > _MAX_DEPTH:
            fail("nested too deeply")
        element = _Element(attributes)
        path[-1].children.setdefault(name, []).append(element)
        path.append(element)

    def end(_name: str) -> None:
        path.pop()

    def text(piece: str) -> None:
        path[-1].text += piece

    parser.StartDoctypeDeclHandler = doctype
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    parser.buffer_text = True
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise BadInput(
            f"not XML: {expat.errors.messages[error.code]}", file=file, line=error.lineno, column=error.offset + 1
        ) from error
    logs = document.children.get("nvidia_smi_log")
    if not logs:
        raise BadInput("not the output of nvidia-smi -q -x", file=file)
    return logs[0]
