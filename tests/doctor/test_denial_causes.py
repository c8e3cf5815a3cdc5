# SPDX-License-Identifier: Apache-2.0
"""When a denial has a deeper cause, and when the general finding stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpuiso.devfilter.insn import Insn, pack
from gpuiso.policy.rule import Rule
from tests.devfilter import layouts
from tests.doctor.findings import found, map_files, severities
from tests.records import RecordMaker

ID = "0123456789abcdef" * 4
SCOPE = f"docker-{ID}.scope"
CGROUP = f"/system.slice/{SCOPE}"
LIBCUDA = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04"
ALWAYS = [Rule(True, "c", 1, 3, "rwm"), Rule(True, "c", 5, 0, "rwm")]
GPUS = [Rule(True, "c", 195, 0, "rw"), Rule(True, "c", 195, 255, "rw"), Rule(True, "c", 238, None, "rw")]
OWN = {"/dev/nvidia0": (195, 0), "/dev/nvidiactl": (195, 255), "/dev/nvidia-uvm": (238, 0)}
OCI = f"/run/containerd/io.containerd.runtime.v2.task/moby/{ID}/config.json"


def program(code: list[Insn], name: str = "") -> dict[str, Any]:
    return {"id": 9, "name": name, "tag": "0", "attach_flags": 2, "insns": pack(code).hex()}


def process(maker: RecordMaker, cgroup: str, programs: list[dict[str, Any]], **more: Any) -> None:
    maker.add_process(7, {"NVIDIA_VISIBLE_DEVICES": "all"}, cgroup=cgroup, **{"own_dev": OWN, **more})
    map_files(maker, 7, LIBCUDA)
    if not more.get("descriptors"):
        maker.nodes["/proc/7/fd/0"] = {"path": "/proc/7/fd/0", "type": "l", "target": "/dev/null"}
    maker.cgroups["/system.slice"] = {"device_programs": []}
    maker.cgroups[cgroup] = {"device_programs": programs}


def rules(maker: RecordMaker, pid: int | None = 7) -> set[str]:
    return {rule for rule, severity in severities(maker, pid) if severity != "info"}


RUNC_WITHOUT = program(layouts.runc(ALWAYS))
RUNC_WITH = program(layouts.runc([*GPUS, *ALWAYS]))
SYSTEMD_WITHOUT = program(layouts.systemd(ALWAYS), "sd_devices")
SYSTEMD_WITH = program(layouts.systemd([*GPUS, *ALWAYS]), "sd_devices")


def config(maker: RecordMaker, text: str) -> None:
    maker.files["/etc/nvidia-container-runtime/config.toml"] = text


def test_systemd_denies_what_the_other_program_allows(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, CGROUP, [RUNC_WITH, SYSTEMD_WITHOUT])
    assert rules(maker) == {"GPU-SYSTEMD-RELOAD-LOSS"}


def test_a_loss_names_the_verb_that_mends_it(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, CGROUP, [RUNC_WITH, SYSTEMD_WITHOUT])
    (finding,) = found(maker, "GPU-SYSTEMD-RELOAD-LOSS", 7)
    assert f"sudo gpuiso repair --container {ID}" in [fix.command for fix in finding.fix]


def test_no_cgroups_does_not_explain_what_somebody_allowed(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, CGROUP, [RUNC_WITH, SYSTEMD_WITHOUT])
    config(maker, "[nvidia-container-cli]\nno-cgroups = true\n")
    assert rules(maker) == {"GPU-SYSTEMD-RELOAD-LOSS"}


def test_never_allowed_and_nobody_knows_why(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, CGROUP, [RUNC_WITHOUT])
    assert rules(maker) == {"GPU-CGV2-EBPF-DENY"}
    config(maker, "[nvidia-container-cli]\nno-cgroups = false\n")
    assert rules(maker) == {"GPU-CGV2-EBPF-DENY"}


def test_no_cgroups(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, CGROUP, [RUNC_WITHOUT])
    config(maker, "[nvidia-container-cli]\nno-cgroups = true\n")
    assert rules(maker) == {"GPU-NVCT-NOCGROUPS"}


def test_no_cgroups_is_right_for_a_rootless_engine(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, CGROUP, [RUNC_WITHOUT])
    config(maker, "[nvidia-container-cli]\nno-cgroups = true\n")
    maker.files["/proc/7/uid_map"] = "0 1000 1\n1 100000 65536\n"
    assert rules(maker) == {"GPU-CGV2-EBPF-DENY"}


def test_a_configuration_that_is_no_toml(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, CGROUP, [RUNC_WITHOUT])
    config(maker, "no-cgroups = true = false\n")
    assert rules(maker) == {"GPU-CGV2-EBPF-DENY"}


def test_an_update_that_the_hook_s_mounts_show(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, CGROUP, [RUNC_WITHOUT])
    config(maker, "[nvidia-container-cli]\n#no-cgroups = false\n")
    maker.files["/proc/7/mountinfo"] = (
        "1 0 0:50 / / rw - overlay overlay rw\n25 1 0:51 / /dev rw,nosuid - tmpfs tmpfs rw\n"
        "26 25 0:5 /nvidia0 /dev/nvidia0 ro,nosuid,noexec - devtmpfs udev rw\n"
    )
    assert rules(maker) == {"GPU-CONTAINER-UPDATE-LOSS"}


def test_a_filter_that_names_what_it_denies_was_meant(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    everything_but = [
        Rule(True, "a", None, None, "rwm"),
        *(Rule(False, "c", *numbers, "rwm") for numbers in OWN.values()),
    ]
    process(maker, CGROUP, [program(layouts.runc(everything_but))], descriptors=("/dev/nvidia0",))
    assert rules(maker) == {"GPU-CGV2-EBPF-DENY"}


def test_the_risk_of_a_container_that_systemd_knows_nothing_of(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, CGROUP, [RUNC_WITH])
    unit = {"DevicePolicy": "strict", "DeviceAllow": [["char-*", "m"], ["/dev/char/1:3", "rwm"]]}
    maker.tools["systemd.json"] = {SCOPE: unit}
    assert rules(maker) == {"GPU-SYSTEMD-RELOAD-RISK"}
    maker.tools["systemd.json"] = {SCOPE: {"DevicePolicy": "auto", "DeviceAllow": []}}
    assert rules(maker) == set()
    allow = [["/dev/char/195:0", "rw"], ["char-nvidia", "rw"], ["char-nvidia-uvm", "rw"]]
    maker.tools["systemd.json"] = {SCOPE: {"DevicePolicy": "strict", "DeviceAllow": allow}}
    assert rules(maker) == set()


def test_links_matter_to_an_old_runc_alone(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, CGROUP, [RUNC_WITH])
    maker.tools["systemd.json"] = {SCOPE: {"DevicePolicy": "strict", "DeviceAllow": [["/dev/char/1:3", "rwm"]]}}
    devices = [{"allow": True, "type": "c", "major": 195, "access": "rwm"}, {"allow": True, "type": "c", "major": 238}]
    maker.files[OCI] = json.dumps({"linux": {"resources": {"devices": devices}}})
    maker.nodes["/dev/char"] = {"path": "/dev/char", "type": "d"}

    def runc(version: str) -> None:
        answer = {"exit": 0, "stdout": f"runc version {version}\n", "stderr": "", "seconds": 0, "timed_out": False}
        maker.tools["commands.json"] = [{"argv": ["runc", "--version"], **answer}]

    for version, expected in (("1.1.2", "RISK"), ("1.1.3", "LINK"), ("1.1.6", "LINK"), ("1.1.7", "RISK")):
        runc(version)
        wanted = {"RISK": "GPU-SYSTEMD-RELOAD-RISK", "LINK": "GPU-DEVCHAR-SYMLINK-MISSING"}[expected]
        assert rules(maker) == {wanted}, version


def test_a_service_whose_settings_are_not_known(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, "/system.slice/a.service", [SYSTEMD_WITHOUT], own_dev=None)
    assert rules(maker) == {"GPU-CGV2-EBPF-DENY"}


def test_a_stranger_s_program_on_a_service(tmp_path: Path) -> None:
    """The unit has a list, but it is not systemd's program that denies."""
    maker = RecordMaker(tmp_path)
    process(maker, "/system.slice/a.service", [SYSTEMD_WITH, RUNC_WITHOUT], own_dev=None)
    unit = {"DevicePolicy": "closed", "DeviceAllow": [["char-nvidia", "rw"], ["char-nvidia-uvm", "rw"]]}
    maker.tools["systemd.json"] = {"a.service": unit}
    assert rules(maker) == {"GPU-CGV2-EBPF-DENY"}


def test_a_container_below_a_private_service_is_not_the_service(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    cgroup = f"/system.slice/a.service/docker/{ID}"
    process(maker, cgroup, [RUNC_WITHOUT])
    maker.cgroups |= {
        path: {"device_programs": []} for path in ("/system.slice/a.service", "/system.slice/a.service/docker")
    }
    maker.tools["systemd.json"] = {"a.service": {"PrivateDevices": True, "DevicePolicy": "closed", "DeviceAllow": []}}
    assert rules(maker) == {"GPU-CGV2-EBPF-DENY"}
