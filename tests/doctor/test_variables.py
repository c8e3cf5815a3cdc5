# SPDX-License-Identifier: Apache-2.0
"""Order, names, launchers, isolation and consumers of the variables that select GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuiso.doctor.checks.variable_names import edits, meant
from gpuiso.gpu.visibility.names import VARIABLES
from tests.doctor.job import PID, Job, alarms
from tests.records import UUIDS

FIRST, SECOND = UUIDS
CVD, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
UVM = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0")


# Order


@pytest.mark.parametrize("order", ["pci_bus_id", "PCI", "FASTEST", " PCI_BUS_ID"])
def test_an_order_that_cuda_refuses(tmp_path: Path, order: str) -> None:
    assert Job(tmp_path, {ORDER: order}).rules() == {"GPU-CVD-ORDER": "error"}


@pytest.mark.parametrize("order", ["PCI_BUS_ID", "FASTEST_FIRST", ""])
def test_silent_on_orders_that_work(tmp_path: Path, order: str) -> None:
    assert Job(tmp_path, {ORDER: order}).rules() == {}


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ({CVD: "0"}, True),
        ({CVD: "2,1"}, True),
        ({CVD: "0", ORDER: "PCI_BUS_ID"}, False),
        ({CVD: "0", ORDER: "FASTEST_FIRST"}, False),  # somebody chose it
        ({CVD: FIRST}, False),
        ({CVD: "2,1,0"}, False),  # all of them, in whatever order
        ({}, False),
    ],
)
def test_numbers_on_a_host_of_two_models(tmp_path: Path, env: dict[str, str], found: bool) -> None:
    job = Job(tmp_path)
    job.add_gpu(2, 2, "GPU-33333333-3333-3333-3333-333333333333", model="NVIDIA T4")
    job.add(PID, env)
    assert alarms(job.rules()) == ({"GPU-CVD-ORDER": "warning"} if found else {})


# Names


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("CUDA_VISABLE_DEVICES", CVD),
        ("CUDA_VISIBLE_DEVICE", CVD),
        ("CUDA_VISIBLE_DEIVCES", CVD),
        ("CUDA_VISBLE_DEVICES", CVD),
        ("cuda_visible_devices", CVD),
        ("CUDA_VISIBLE_DEVICES ", CVD),
        ("CUDA_VISIBLE_DEVICESS", CVD),
        ("CUDA_DEVICES_ORDER", ORDER),
        ("NVIDIA_VISIBLE_DEVICE", "NVIDIA_VISIBLE_DEVICES"),
        ("ROCM_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
        ("ZE_AFINITY_MASK", "ZE_AFFINITY_MASK"),
    ],
)
def test_a_slip_is_recognised(name: str, known: str) -> None:
    assert meant(name) == known


@pytest.mark.parametrize(
    "name",
    [
        *VARIABLES,
        "CUDA_VISIBLE_DEVICES_ORIG",
        "CUDA_VISIBLE_DEVICES_1",
        "_CUDA_VISIBLE_DEVICES",
        "OLD_CUDA_VISIBLE_DEVICES",
        "MUSA_VISIBLE_DEVICES",
        "ASCEND_RT_VISIBLE_DEVICES",
        "XPU_VISIBLE_DEVICES",
        "NVIDIA_REQUIRE_CUDA",
        "NVIDIA_PRODUCT_NAME",
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_HOME",
        "PATH",
        "",
    ],
)
def test_other_names_are_no_slips(name: str) -> None:
    assert meant(name) is None


def test_edits() -> None:
    assert [edits("abc", other) for other in ("abc", "acb", "ab", "abcd", "xbc", "cba")] == [0, 1, 1, 1, 1, 2]
    assert edits("", "abc") == 3


def test_a_slip_beside_the_right_name_of_the_same_value_harms_nobody(tmp_path: Path) -> None:
    assert alarms(Job(tmp_path, {"CUDA_VISIBLE_DEVICE": "0", CVD: "0"}).rules()) == {}


def test_a_slip_is_found_in_the_sweep_of_gpu_holders(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.add(PID, {"CUDA_VISIBLE_DEVICE": "0"}, descriptors=UVM)
    assert job.rules(asked=False) == {"GPU-CVD-TYPO": "warning"}


# What changed on the way


def below(job: Job, *chain: tuple[str, dict[str, str]]) -> Job:
    """Processes one below the other; the last is the one examined."""
    for depth, (comm, env) in enumerate(chain):
        last = depth == len(chain) - 1
        job.add(PID if last else 100 + depth, env, comm=comm, ppid=99 + depth if depth else 1, descriptors=UVM)
    return job


def test_ray_empties_the_variable_for_work_without_gpus(tmp_path: Path) -> None:
    job = below(Job(tmp_path), ("raylet", {}), ("ray::IDLE", {CVD: "", "RAY_JOB_ID": "1"}))
    assert job.rules() == {"GPU-CVD-OVERWRITTEN": "warning"}
    assert job.rules(asked=False) == {}, "that is how Ray works"


@pytest.mark.parametrize("comm", ["raylet", "mpirun"])
def test_a_launcher_that_narrows_the_choice_is_right(tmp_path: Path, comm: str) -> None:
    env = {"RAY_JOB_ID": "1", "OMPI_COMM_WORLD_RANK": "0"}
    job = below(Job(tmp_path), ("bash", {CVD: "0,1"}), (comm, {CVD: "0,1"}), ("python3", {CVD: "1", **env}))
    assert alarms(job.rules()) == {}


def test_a_launcher_that_takes_another_gpu(tmp_path: Path) -> None:
    env = {CVD: "0", "OMPI_COMM_WORLD_RANK": "0"}
    job = below(Job(tmp_path), ("bash", {CVD: SECOND}), ("mpirun", {CVD: SECOND}), ("python3", env))
    assert alarms(job.rules()) == {"GPU-CVD-OVERWRITTEN": "warning"}


def test_a_user_may_choose_anew_on_the_command_line(tmp_path: Path) -> None:
    job = below(Job(tmp_path), ("bash", {CVD: "0"}), ("python3", {CVD: "1"}))
    assert alarms(job.rules()) == {}
    assert job.rules(asked=False) == {}


def test_sudo_drops_the_variable(tmp_path: Path) -> None:
    job = below(Job(tmp_path), ("bash", {CVD: "1"}), ("sudo", {CVD: "1"}), ("python3", {"SUDO_USER": "me"}))
    assert job.rules() == {"GPU-ENV-DROPPED": "warning"}
    assert job.rules(asked=False) == {"GPU-ENV-DROPPED": "warning"}


@pytest.mark.parametrize(
    "chain",
    [
        (("bash", {CVD: "0,1"}), ("sudo", {CVD: "0,1"}), ("python3", {})),  # it was all of them anyway
        (("bash", {CVD: "1"}), ("sudo", {CVD: "1"}), ("python3", {CVD: "1"})),
        (("bash", {}), ("sudo", {}), ("python3", {})),
        (("bash", {CVD: "1"}), ("python3", {})),  # env -u, on purpose
    ],
)
def test_nothing_was_dropped(tmp_path: Path, chain: tuple[tuple[str, dict[str, str]], ...]) -> None:
    assert alarms(below(Job(tmp_path), *chain).rules()) == {}


def test_a_monitor_under_sudo_is_left_alone(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.add(100, {CVD: "1"}, comm="sudo")
    job.add(PID, {}, comm="nvtop", ppid=100, descriptors=("/dev/nvidiactl", "/dev/nvidia0"))
    assert job.rules(asked=False) == {}


def service(directory: Path, own: str | None, everywhere: str, *, cgroup: str = "/system.slice/ollama.service") -> Job:
    job = Job(directory)
    job.add(PID, {} if own is None else {CVD: own}, comm="ollama", cgroup=cgroup)
    job.files["/etc/environment"] = f'{CVD}="{everywhere}"\n'
    job.files["/etc/profile"] = f"# {CVD}=7\n"
    return job


def test_a_service_does_not_read_what_logins_read(tmp_path: Path) -> None:
    assert service(tmp_path / "a", None, "1").rules() == {"GPU-ENV-DROPPED": "warning"}
    assert service(tmp_path / "b", "0", "1").rules("GPU-ENV-DROPPED") == {"GPU-ENV-DROPPED": "info"}
    assert service(tmp_path / "c", "1", SECOND).rules("GPU-ENV-DROPPED") == {}, "the same GPU"
    assert service(tmp_path / "d", None, "1").rules(asked=False) == {}
    session = "/user.slice/user-1000.slice/session-3.scope"
    assert service(tmp_path / "e", None, "1", cgroup=session).rules() == {}


# Isolation


@pytest.mark.parametrize("value", ["0", SECOND])
def test_an_ordinary_process_that_selects_one_gpu(tmp_path: Path, value: str) -> None:
    job = Job(tmp_path, {CVD: value})
    assert job.rules(asked=False) == {}, "that is how things are on a machine of one's own"
    assert job.rules() == {"GPU-ENV-ONLY-ISOLATION": "info"}


@pytest.mark.parametrize("comm", ["nvidia-smi", "nvtop"])
def test_nvml_tools_do_not_read_the_variable(tmp_path: Path, comm: str) -> None:
    job = Job(tmp_path)
    job.add(PID, {CVD: "0"}, comm=comm)
    assert job.rules() == {"GPU-NVML-IGNORES-CVD": "info"}


# Consumers


SITE = "/venv/lib/python3.10/site-packages"


def torch(directory: Path, version: str, value: str) -> Job:
    job = Job(directory, {CVD: value})
    job.files[f"/proc/{PID}/maps"] = f"7f00-7f01 r-xp 00000000 08:01 1 {SITE}/torch/lib/libtorch_cpu.so\n"
    path = f"/proc/{PID}/root{SITE}/torch-{version}.dist-info"
    job.nodes[path] = {"path": path, "type": "d"}
    return job


@pytest.mark.parametrize(
    ("version", "value", "found"),
    [("1.13.1", FIRST, True), ("1.9.0+cu111", SECOND, True), ("2.0.0", FIRST, False), ("1.13.1", "0", False)],
)
def test_an_old_torch_counts_no_uuid(tmp_path: Path, version: str, value: str, found: bool) -> None:
    expected = {"GPU-CVD-CONSUMER-UUID": "info"} if found else {}
    assert torch(tmp_path, version, value).rules("GPU-CVD-") == expected


def script(directory: Path, text: str, *, on: int, argv: str = "python3\0./train.py\0") -> dict[str, str]:
    job = Job(directory)
    job.add(PID, {}, descriptors=UVM)
    gpus: list[dict[str, Any]] = [
        {"index": index, "uuid": uuid, "pci_bus_id": f"00000000:{index:02x}:00.0", "processes": []}
        for index, uuid in enumerate(UUIDS)
    ]
    gpus[on]["processes"] = [{"pid": PID, "type": "C", "used_memory_mib": 100}]
    job.tools["nvml.json"] = {"driver_version": "580.159.04", "gpus": gpus}
    job.files[f"/proc/{PID}/cmdline"] = argv
    job.nodes[f"/proc/{PID}/cwd"] = {"path": f"/proc/{PID}/cwd", "type": "l", "target": "/job"}
    job.files[f"/proc/{PID}/root/job/train.py"] = text
    return job.rules("GPU-CVD-")


SET = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'\n"


def test_a_script_that_sets_the_variable_too_late(tmp_path: Path) -> None:
    late = f"import torch\n{SET}"
    assert script(tmp_path / "a", late, on=0) == {"GPU-CVD-AFTER-INIT": "info"}
    assert script(tmp_path / "b", late, on=1) == {}, "it was in time after all"
    assert script(tmp_path / "c", f"{SET}import torch\n", on=0) == {}, "who knows why, but not for that reason"
    assert script(tmp_path / "d", "import torch\n# os.environ['CUDA_VISIBLE_DEVICES'] = '1'\n", on=0) == {}
    assert script(tmp_path / "e", late, on=0, argv="python3\0-m\0train\0") == {}
