# SPDX-License-Identifier: Apache-2.0
"""A host from a record: the format is DESIGN's and described in docs/host-record.md.

The record is what a stranger sent: it is read by :mod:`gpuiso.host.archive`, within bounds, and a file that breaks
the format is a :class:`gpuiso.errors.BadInput` that names it, raised by
:meth:`RecordedHost.check` or when the file is first needed.
"""

from __future__ import annotations

import errno
from functools import cached_property
from typing import Any, Literal, cast

from gpuiso.errors import BadInput, Unknown
from gpuiso.host.archive import open_archive
from gpuiso.host.protocol import BpfMap, CgroupMode, CommandResult, DeviceProgram, Node
from gpuiso.host.record_json import MAX_JSON, Place, parse
from gpuiso.host.record_nodes import parse_absent, parse_nodes
from gpuiso.host.record_tree import Tree
from gpuiso.host.shapes import check_container, check_info, check_unit

__all__ = ["FORMAT", "RecordedHost"]

_BPF_F_ALLOW_MULTI = 2  # how every engine and systemd attach; what a record leaves out is read as that

FORMAT = "gpuiso-host/1"
_CGROUP_MODES = ("unified", "hybrid", "legacy")
_BPF_INSN = 8  # bytes of struct bpf_insn
_MISSING = object()


class RecordedHost:
    """The host recorded at ``path``, a directory or a .tar.gz.

    :raises BadInput: not a record, of a format this version cannot read, or hostile.
    :raises NotFound: no such file.
    :raises NotPermitted: not permitted to read it.
    """

    live: Literal[False] = False

    def __init__(self, path: str) -> None:
        self.name = path
        self._archive = open_archive(path)
        self._record = self._check_record()
        nodes = self._archive.read("nodes.jsonl")
        absent = self._archive.read("absent.json", limit=MAX_JSON)
        self._tree = Tree(
            path,
            self._archive,
            None if nodes is None else parse_nodes(nodes, f"{path}/nodes.jsonl"),
            frozenset() if absent is None else parse_absent(absent, f"{path}/absent.json"),
        )

    def check(self) -> None:
        """Looks at every entry's kind and reads what there is of JSON.

        Else a broken file passes for one that nobody needed to look at, and the host for a healthy one.

        :raises BadInput: the record breaks the format somewhere.
        """
        self._archive.check()
        if self._archive.kind("tools/nvml.json") is not None:
            self._nvml  # noqa: B018 - read for its error
        for name in ("_cgroups", "_probes", "_units", "_docker", "_commands"):
            try:
                getattr(self, name)
            except Unknown:
                continue  # not recorded

    def _check_record(self) -> dict[str, Any]:
        file = f"{self.name}/record.json"
        data = self._archive.read("record.json", limit=MAX_JSON)
        if data is None:
            raise BadInput("not a record: it has no record.json", file=self.name)
        place = Place(file)
        record = place.mapping(parse(data, file))
        form = place.key("format").string(record.get("format"))
        if form != FORMAT:
            place.key("format").fail(f"{form[:40]!r} cannot be read; this version of gpuiso reads {FORMAT!r}")
        place.optional_strings(record, "captured", "kernel", "note")
        mode = record.get("cgroup_mode")
        if mode is not None and mode not in _CGROUP_MODES:
            place.key("cgroup_mode").fail(f"must be {', '.join(_CGROUP_MODES)}, not {str(mode)[:40]!r}")
        if record.get("systemd") is not None:
            place.key("systemd").boolean(record["systemd"])
        return record

    # Machine

    def _stated(self, key: str) -> Any:
        value = self._record.get(key)
        if value is None:
            raise Unknown(key, "record.json does not say")
        return value

    @property
    def kernel(self) -> str:
        if self._record.get("kernel") is not None:
            return cast(str, self._record["kernel"])
        release = self.text("/proc/sys/kernel/osrelease")
        if release is None:
            raise Unknown("kernel", "record.json does not say")
        return release.strip()

    @property
    def cgroup_mode(self) -> CgroupMode:
        return cast(CgroupMode, self._stated("cgroup_mode"))

    @property
    def systemd(self) -> bool:
        return cast(bool, self._stated("systemd"))

    # Files

    def read(self, path: str) -> bytes | None:
        return self._tree.read(path)

    def text(self, path: str) -> str | None:
        data = self.read(path)
        return None if data is None else data.decode("utf-8", "replace")

    def listdir(self, path: str) -> tuple[str, ...] | None:
        return self._tree.listdir(path)

    def lstat(self, path: str) -> Node | None:
        return self._tree.node(path, follow=False)

    def stat(self, path: str) -> Node | None:
        return self._tree.node(path, follow=True)

    def readlink(self, path: str) -> str | None:
        node = self.lstat(path)
        return None if node is None else node.target

    def getxattr(self, path: str, name: str) -> bytes | None:
        raise Unknown(f"{name} of {path}", "records hold no extended attributes")

    def pids(self) -> tuple[int, ...]:
        found = self._tree.pids()
        if not found:
            raise Unknown("processes", "none was recorded")
        return found

    # Cgroups and access

    @cached_property
    def _cgroups(self) -> dict[str, tuple[DeviceProgram, ...] | None]:
        place, value = self._json("cgroups.json")
        found: dict[str, tuple[DeviceProgram, ...] | None] = {}
        for cgroup, entry in place.mapping(value).items():
            where = place.key(cgroup)
            programs = where.mapping(entry).get("device_programs", _MISSING)
            if programs is _MISSING:
                continue
            where = where.key("device_programs")
            found[_cgroup_path(cgroup)] = (
                None
                if programs is None
                else tuple(
                    _device_program(program, where.key(index)) for index, program in enumerate(where.sequence(programs))
                )
            )
        return found

    def device_programs(self, cgroup: str) -> tuple[DeviceProgram, ...] | None:
        what = f"device programs of cgroup {cgroup}"
        programs = self._cgroups.get(_cgroup_path(cgroup), _MISSING)
        if programs is _MISSING:
            raise Unknown(what, "not recorded")
        if programs is None:
            raise Unknown(what, "not permitted to ask when the record was written")
        return cast("tuple[DeviceProgram, ...]", programs)

    @cached_property
    def _probes(self) -> dict[str, dict[str, dict[str, str]]]:
        place, value = self._json("probes.json")
        for pid, nodes in place.mapping(value).items():
            if not (pid.isascii() and pid.isdecimal()):
                place.fail(f"{pid[:40]!r} is no pid")
            for node, failures in place.key(pid).mapping(nodes).items():
                where = place.key(pid).key(node)
                for access, name in where.mapping(failures).items():
                    if not access or not set(access) <= {"r", "w"}:
                        where.fail(f"access must be of r and w, not {access[:40]!r}")
                    if where.key(access).string(name) not in errno.errorcode.values():
                        where.key(access).fail(f"{name[:40]!r} is no errno name such as 'EPERM'")
        return cast("dict[str, dict[str, dict[str, str]]]", value)

    def bpf_map(self, map_id: int) -> BpfMap | None:
        return None

    def kernel_function(self, distance: int) -> str | None:
        return None

    def probe(self, pid: int, node: str, access: str = "rw") -> str | None:
        probed = self._probes.get(str(pid))
        what = f"access of process {pid} to {node}"
        if probed is None:
            raise Unknown(what, "not probed")
        failures = probed.get(node, {})
        asked = set(access)
        for tried, name in failures.items():
            if set(tried) <= asked:
                return name
        if any(asked < set(tried) for tried in failures):
            raise Unknown(what, f"only {' and '.join(failures)} was probed, not {access}")
        return None

    # Tools

    @cached_property
    def _nvml(self) -> dict[str, Any] | None:
        if self._archive.kind("tools/nvml.json") is None:
            data = self._archive.read("tools/nvidia-smi-q.xml")
            if data is None:
                raise Unknown("NVML", "not recorded")
            from gpuiso.host.nvidia_smi_xml import nvml_from_xml

            return nvml_from_xml(data, f"{self.name}/tools/nvidia-smi-q.xml")
        place, value = self._json("tools/nvml.json")
        return None if value is None else _checked_nvml(value, place)

    def nvml(self) -> dict[str, Any] | None:
        if self._nvml is not None and self._nvml.get("error") is not None:
            raise Unknown("NVML", self._nvml["error"])
        return self._nvml

    def kernel_log(self) -> str:
        data = self._archive.read("tools/dmesg.txt")
        if data is None:
            raise Unknown("kernel log", "not recorded")
        return data.decode("utf-8", "replace")

    @cached_property
    def _units(self) -> dict[str, dict[str, Any] | None]:
        place, value = self._json("tools/systemd.json")
        for name, unit in place.mapping(value).items():
            if unit is not None:
                check_unit(unit, place.key(name))
        return cast("dict[str, dict[str, Any] | None]", value)

    def unit(self, name: str) -> dict[str, Any] | None:
        if name not in self._units:
            raise Unknown(f"unit {name}", "not recorded")
        return self._units[name]

    @cached_property
    def _docker(self) -> dict[str, Any]:
        place, value = self._json("tools/docker.json")
        docker = place.mapping(value)
        if docker.get("info") is not None:
            check_info(docker["info"], place.key("info"))
        if docker.get("containers") is not None:
            where = place.key("containers")
            for container, inspect in where.mapping(docker["containers"]).items():
                check_container(inspect, where.key(container))
        return docker

    def docker_info(self) -> dict[str, Any] | None:
        if "info" not in self._docker:
            raise Unknown("docker info", "not recorded")
        return cast("dict[str, Any] | None", self._docker["info"])

    def docker_containers(self) -> dict[str, dict[str, Any]]:
        containers = self._docker.get("containers")
        if containers is None:
            raise Unknown("docker containers", "not recorded")
        return cast("dict[str, dict[str, Any]]", containers)

    @cached_property
    def _commands(self) -> dict[tuple[str, ...], CommandResult | None]:
        place, value = self._json("tools/commands.json")
        results = (_command(item, place.key(index)) for index, item in enumerate(place.sequence(value)))
        return dict(results)

    def command(self, argv: tuple[str, ...], *, timeout: float = 5.0) -> CommandResult | None:
        if argv not in self._commands:
            raise Unknown(f"output of {' '.join(argv)}", "not recorded")
        return self._commands[argv]

    def _json(self, path: str) -> tuple[Place, Any]:
        """A JSON file of the record and its place. :raises Unknown: the record has none."""
        data = self._archive.read(path, limit=MAX_JSON)
        if data is None:
            raise Unknown(path, "not recorded")
        file = f"{self.name}/{path}"
        return Place(file), parse(data, file)


def _cgroup_path(cgroup: str) -> str:
    return f"/{cgroup.strip('/')}"


def _device_program(value: Any, place: Place) -> DeviceProgram:
    program = place.mapping(value)
    insns: bytes | None = None
    if program.get("insns") is not None:
        where = place.key("insns")
        try:
            insns = bytes.fromhex(where.string(program["insns"]))
        except ValueError:
            where.fail("must be hexadecimal")
        if len(insns) % _BPF_INSN:
            where.fail(f"must be whole instructions of {_BPF_INSN} bytes, not {len(insns)} bytes")
    return DeviceProgram(
        id=place.key("id").integer(program.get("id", 0), 0, 2**32 - 1),
        name=place.key("name").string(program.get("name", "")),
        tag=place.key("tag").string(program.get("tag", "")),
        attach_flags=place.key("attach_flags").integer(program.get("attach_flags", _BPF_F_ALLOW_MULTI), 0, 2**32 - 1),
        insns=insns,
    )


def _checked_nvml(value: Any, place: Place) -> dict[str, Any]:
    nvml = place.mapping(value)
    place.optional_strings(nvml, "driver_version", "cuda_version", "error")
    where = place.key("gpus")
    for index, item in enumerate(where.sequence(nvml.get("gpus", []))):
        gpu, at = where.key(index).mapping(item), where.key(index)
        at.key("index").integer(gpu.get("index"), 0, 2**31)
        at.optional_strings(
            gpu, "uuid", "name", "pci_bus_id", "mig_mode", "compute_mode", "persistence_mode", "ecc_mode", "error"
        )
        at.optional_integers(gpu, "minor", "memory_total_mib", "memory_used_mib", "recovery_action")
        for number, process in enumerate(at.key("processes").sequence(gpu.get("processes", []))):
            here = at.key("processes").key(number)
            here.key("pid").integer(here.mapping(process).get("pid"))
            here.optional_strings(process, "type")
            here.optional_integers(process, "used_memory_mib", "gpu_instance", "compute_instance")
        for number, device in enumerate(at.key("mig_devices").sequence(gpu.get("mig_devices", []))):
            here = at.key("mig_devices").key(number)
            here.optional_strings(here.mapping(device), "uuid", "profile")
            here.optional_integers(device, "gpu_instance", "compute_instance")
    return nvml


def _command(value: Any, place: Place) -> tuple[tuple[str, ...], CommandResult | None]:
    """``exit`` null without ``timed_out`` says that the program is not installed."""
    entry = place.mapping(value)
    words = place.key("argv").sequence(entry.get("argv"))
    argv = tuple(place.key("argv").key(index).string(word) for index, word in enumerate(words))
    if not argv:
        place.key("argv").fail("must name a program")
    timed_out = place.key("timed_out").boolean(entry.get("timed_out", False))
    status = entry.get("exit")
    if status is not None:
        place.key("exit").integer(status, -255, 255)
    elif not timed_out:
        return argv, None
    return argv, CommandResult(
        argv=argv,
        exit=status,
        stdout=place.key("stdout").string(entry.get("stdout", "")),
        stderr=place.key("stderr").string(entry.get("stderr", "")),
        seconds=place.key("seconds").number(entry.get("seconds", 0)),
        timed_out=timed_out,
    )
