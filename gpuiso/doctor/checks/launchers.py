# SPDX-License-Identifier: Apache-2.0
"""Variables that changed on the way down to a process: a launcher wrote over them, sudo or systemd left them out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from gpuiso.doctor.checks.cuda_words import assignment, gpu_name, inherited, restart, select_fix
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule
from gpuiso.doctor.machine import Subject
from gpuiso.doctor.registry import process_check
from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.visibility import cuda_visible
from gpuiso.gpu.visibility.cuda import VARIABLE
from gpuiso.host import process

__all__ = ["hidden_by_ray"]

OVERWRITTEN = Rule(
    "GPU-CVD-OVERWRITTEN",
    "warning",
    "A launcher wrote over CUDA_VISIBLE_DEVICES",
    "Ray, Slurm, MPI or Grid Engine set CUDA_VISIBLE_DEVICES to other GPUs than the ones chosen above it, or to none",
    ("https://github.com/ray-project/ray/pull/17847", "https://github.com/ray-project/ray/issues/53643"),
)
DROPPED = Rule(
    "GPU-ENV-DROPPED",
    "warning",
    "A variable that selects GPUs did not reach the process",
    "CUDA_VISIBLE_DEVICES is set above sudo or su, or in /etc/environment, and the process does not have it",
    ("https://github.com/ollama/ollama/issues/9722", "https://www.sudo.ws/docs/man/sudoers.man/"),
)

#: Programs that set the variable for what they start, by the prefix of the variables that betray them.
_LAUNCHERS = {
    "RAY_": ("Ray", ("raylet",)),
    "SLURM_": ("Slurm", ("slurmstepd",)),
    "SGE_": ("Grid Engine", ("sge_shepherd",)),
    "OMPI_": ("Open MPI", ("mpirun", "orterun", "prterun", "orted", "prted")),
    "PMI_": ("MPI", ("mpiexec", "mpiexec.hydra", "hydra_pmi_proxy")),
}
_NEW_ENVIRONMENT = frozenset({"doas", "pkexec", "runuser", "su", "sudo"})
_SESSION_FILES = ("/etc/environment", "/etc/profile")
_SESSION_DIRECTORY = "/etc/profile.d"
_ASSIGNMENT = re.compile(rf"^\s*(?:export\s+)?{VARIABLE}=([\"']?)([^\"'#;\s]*)\1", re.MULTILINE)
_SERVICE = re.compile(r"/system\.slice/(?:.*/)?([^/]+\.service)(?:/.*)?")


def _launcher(subject: Subject) -> tuple[str, int] | None:
    """The launcher a process was started by: its product's name and its pid."""
    products = [
        product for prefix, product in _LAUNCHERS.items() if any(name.startswith(prefix) for name in subject.env)
    ]
    if not products:
        return None
    for pid in process.ancestors(subject.host, subject.pid):
        comm = process.command_name(subject.host, pid)
        for product, programs in products:
            if comm in programs:
                return product, pid
    return None


def _chosen_above(subject: Subject, launcher: int) -> tuple[int, str] | None:
    """Who, from the launcher upwards, first has the variable, and its value."""
    for pid in (launcher, *process.ancestors(subject.host, launcher)):
        try:
            value = process.environ(subject.host, pid).get(VARIABLE)
        except (NotFound, Unknown):
            continue  # one further up may be readable
        if value is not None:
            return pid, value
    return None


def _physical(subject: Subject, env: Mapping[str, str]) -> frozenset[int]:
    """What a value selects among all GPUs of the host."""
    return frozenset(gpu.physical for gpu in cuda_visible(subject.machine.nvidia, env).gpus)


def hidden_by_ray(subject: Subject) -> bool:
    """Whether Ray emptied the variable, as it does for work that asked for no GPU."""
    if subject.env.get(VARIABLE) != "":
        return False
    launcher = _launcher(subject)
    return launcher is not None and launcher[0] == "Ray"


@process_check(OVERWRITTEN)
def overwritten(subject: Subject) -> Iterator[Finding]:
    """The launcher's value takes GPUs that were not chosen above it, or none at all."""
    value = subject.env.get(VARIABLE)
    if value is None or not subject.machine.nvidia:
        return
    if hidden_by_ray(subject):
        if subject.asked:
            yield _emptied(subject)
        return
    launcher = _launcher(subject)
    above = None if launcher is None else _chosen_above(subject, launcher[1])
    if launcher is None or above is None or above[1] == value or inherited(subject):
        return
    wanted, taken = _physical(subject, {VARIABLE: above[1]}), _physical(subject, {VARIABLE: value})
    if not wanted or taken <= wanted:
        return
    gpus = subject.machine.nvidia
    others = ", ".join(gpu_name(gpus[number]) for number in sorted(taken - wanted))
    yield OVERWRITTEN.finding(
        f"{launcher[0]} (pid {launcher[1]}) was started for {VARIABLE}={above[1]}, but {subject.comm} below it has"
        f" {value}: it also uses {others}, which was not chosen.",
        evidence=[
            Evidence(f"/proc/{above[0]}/environ", f"{VARIABLE}={above[1]}"),
            subject.environ_evidence(VARIABLE),
            Evidence(f"/proc/{launcher[1]}/comm", process.command_name(subject.host, launcher[1])),
        ],
        fix=[
            select_fix(
                subject,
                [gpus[number] for number in sorted(wanted)],
                "Have the launcher hand out the chosen GPUs by UUID instead of counting from 0",
            )
        ],
        target=subject.target,
    )


def _emptied(subject: Subject) -> Finding:
    launcher = _launcher(subject)
    pid = 0 if launcher is None else launcher[1]
    return OVERWRITTEN.finding(
        f"Ray set {VARIABLE} to the empty string for {subject.comm} (pid {subject.pid}), as it does for a task or actor"
        " that asked for no GPU (num_gpus=0): CUDA finds no device in it.",
        evidence=[subject.environ_evidence(VARIABLE), Evidence(f"/proc/{pid}/comm", "raylet")],
        fix=[
            Fix("Ask for a GPU where the work is defined: @ray.remote(num_gpus=1)"),
            Fix(
                "Or have Ray leave the variable alone; every worker then starts on the first GPU unless it selects one"
                " itself. Restart Ray for it",
                "export RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES=1",
            ),
        ],
        target=subject.target,
    )


@process_check(DROPPED)
def dropped(subject: Subject) -> Iterator[Finding]:
    """Set above sudo or su, not set below."""
    if VARIABLE in subject.env or len(subject.machine.nvidia) < 2:
        return
    if not (subject.asked or "/dev/nvidia-uvm" in subject.holds):
        return  # a monitor that ran under sudo does not care
    for pid in process.ancestors(subject.host, subject.pid):
        comm = process.command_name(subject.host, pid)
        if comm not in _NEW_ENVIRONMENT:
            continue
        above = _chosen_above(subject, pid)
        if above is None or inherited(subject):
            return
        wanted = _physical(subject, {VARIABLE: above[1]})
        if not wanted or wanted == _physical(subject, {}):
            return
        yield _left_out(subject, comm, pid, above)
        return


def _left_out(subject: Subject, comm: str, pid: int, above: tuple[int, str]) -> Finding:
    if comm == "sudo":
        fix = Fix(
            f"Let sudo carry it (sudoers must permit that), {restart(subject)}",
            f"sudo --preserve-env={VARIABLE} COMMAND",
        )
    else:
        line = assignment(VARIABLE, above[1])
        fix = Fix(f"Set it behind {comm}, in the new environment, {restart(subject)}", line)
    return DROPPED.finding(
        f"{VARIABLE}={above[1]} was set where {comm} (pid {pid}) was called, and {comm} did not pass it on:"
        f" {subject.comm} (pid {subject.pid}) runs without it and sees every GPU.",
        evidence=[
            Evidence(f"/proc/{above[0]}/environ", f"{VARIABLE}={above[1]}"),
            Evidence(f"/proc/{pid}/comm", comm),
            subject.environ_evidence(VARIABLE),
        ],
        fix=[fix],
        target=subject.target,
    )


@process_check(DROPPED)
def not_for_services(subject: Subject) -> Iterator[Finding]:
    """Files that login sessions read do not reach a service of systemd."""
    if not subject.asked or not subject.machine.nvidia or not subject.host.systemd:
        return
    service = _SERVICE.fullmatch(process.unified_cgroup(subject.host, subject.pid) or "")
    if service is None:
        return
    own = subject.env.get(VARIABLE)
    for path, value in _session_values(subject):
        if value != own and _physical(subject, {VARIABLE: value}) != _physical(
            subject, {} if own is None else {VARIABLE: own}
        ):
            yield _service(subject, service[1], path, value)
            return


def _session_values(subject: Subject) -> Iterator[tuple[str, str]]:
    host = subject.host
    paths = list(_SESSION_FILES)
    try:
        names = host.listdir(_SESSION_DIRECTORY) or ()
        paths += [f"{_SESSION_DIRECTORY}/{name}" for name in names if name.endswith(".sh")]
    except Unknown:
        pass  # the other files may still tell
    for path in paths:
        try:
            text = host.text(path) or ""
        except Unknown:
            continue
        for match in _ASSIGNMENT.finditer(text):
            yield path, match[2]


def _service(subject: Subject, unit: str, path: str, value: str) -> Finding:
    own = subject.env.get(VARIABLE)
    evidence = [Evidence(path, f"{VARIABLE}={value}"), subject.environ_evidence(VARIABLE)]
    where = ""
    try:
        properties = subject.host.unit(unit) or {}
    except Unknown:
        properties = {}
    entry = next((e for e in properties.get("Environment") or () if str(e).startswith(f"{VARIABLE}=")), None)
    if entry is not None:
        files = [str(name) for name in (properties.get("FragmentPath"), *(properties.get("DropInPaths") or ())) if name]
        where = f"; its own value comes from Environment= in {' or '.join(files) or 'the unit'}"
        evidence.append(Evidence(f"systemctl show -p Environment {unit}", str(entry)))
    has = f"has {VARIABLE}={own}" if own is not None else "runs without the variable and sees every GPU"
    return DROPPED.finding(
        f"{path} sets {VARIABLE}={value}, but login sessions alone read that file: the service {unit} {has}{where}.",
        evidence=evidence,
        fix=[
            Fix(
                f"Set it for the service itself: add Environment={VARIABLE}={value} (better the UUID) under [Service],"
                " then restart the service",
                f"sudo systemctl edit {shlex.quote(unit)}",
            )
        ],
        target=subject.target,
        severity="warning" if own is None else "info",
    )
