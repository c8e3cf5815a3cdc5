# SPDX-License-Identifier: Apache-2.0
"""A host that looks as if it had NVIDIA GPUs, for the length of one program: ``unshare -m python -m tests.map.stage``.

In a mount namespace of its own it lays files over /proc/driver, /proc/devices and the PCI bus, and nodes over /dev. No
driver stands behind them: an open that every gate lets pass fails with ENXIO. Then it starts a process in each of many
cgroups with device programs, makes the map of all that, and prints it as JSON, with what an open in each place
met (if asked for) and how long the map took.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpuiso.devfilter.compile import compile_rules
from gpuiso.devfilter.insn import pack
from gpuiso.doctor.map import build_map
from gpuiso.doctor.map.as_json import map_json
from gpuiso.host.live import LiveHost
from gpuiso.kernel.bpf import prog_attach, prog_load
from gpuiso.policy.parse import parse_rules
from tests.support import make_fake_tree

GPUS = 4
NODES = {f"nvidia{gpu}": (195, gpu) for gpu in range(GPUS)} | {"nvidiactl": (195, 255), "nvidia-uvm": (238, 0)}
PLAIN = {"null": (1, 3), "zero": (1, 5), "urandom": (1, 9)}
DEVICES = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n238 nvidia-uvm\n"


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def set_up(scratch: Path) -> None:
    """Lays the pieces of a host with GPUs over this one, for this mount namespace alone."""
    for place in ("/proc/driver", "/sys/bus/pci/devices"):
        mount("-t", "tmpfs", "tmpfs", place)
    for gpu in range(GPUS):
        information = f"GPU UUID: \t {uuid(gpu)}\nDevice Minor: \t {gpu}\n"
        make_fake_tree(Path("/proc/driver/nvidia/gpus"), {f"0000:{gpu:02x}:00.0/information": information})
    make_fake_tree(scratch, {"devices": DEVICES, "dev": None})
    mount("--bind", str(scratch / "devices"), "/proc/devices")
    mount("-t", "tmpfs", "tmpfs", str(scratch / "dev"))
    for name, numbers in {**NODES, **PLAIN}.items():
        node = scratch / "dev" / name
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(*numbers))
        node.chmod(0o666)
    mount("--bind", str(scratch / "dev"), "/dev")


def uuid(gpu: int) -> str:
    return f"GPU-{gpu:08x}-0000-0000-0000-000000000000"


def allowed(number: int) -> set[int]:
    """The GPUs that the program of the cgroup with this number lets pass: each set of them in turn."""
    return {gpu for gpu in range(GPUS) if (number + 1) >> gpu & 1}


def start(top: Path, number: int) -> subprocess.Popen[bytes]:
    """A process that sleeps in a new cgroup with a program, and selects GPU 0."""
    cgroup = top / f"job-{number}"
    cgroup.mkdir()
    rules = "".join(f"allow c 195:{gpu} rw\n" for gpu in sorted(allowed(number)))
    rules += f"allow c 195:255 rw\nallow c 238:0 rw\nallow c 1:* rwm\nallow c 300:{number} rw\n"
    program = prog_load(pack(compile_rules(parse_rules(rules))))
    directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    prog_attach(directory, program)
    os.close(directory)
    os.close(program)
    environ = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": uuid(0)}
    null = subprocess.DEVNULL  # who waits for the end of our output must not wait for theirs
    child = subprocess.Popen(["sleep", "600"], env=environ, stdin=null, stdout=null, stderr=null)
    (cgroup / "cgroup.procs").write_text(str(child.pid))
    return child


def met(cgroup: Path) -> dict[str, str]:
    """The errno of an open of each node by a process in ``cgroup``."""
    script = (
        "import errno, os, sys\nopen(sys.argv[1], 'w').write('0')\n"
        "for path in sys.argv[2:]:\n"
        "    try: os.open(path, os.O_RDWR)\n    except OSError as error: print(path, errno.errorcode[error.errno])\n"
    )
    argv = [sys.executable, "-I", "-S", "-c", script, str(cgroup / "cgroup.procs"), *(f"/dev/{name}" for name in NODES)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    found = dict(line.split() for line in done.stdout.splitlines())
    if not set(found.values()) <= {errno.errorcode[errno.EPERM], errno.errorcode[errno.ENXIO]}:
        raise RuntimeError(f"the stage is wrong: {found}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cgroup", type=Path, help="an empty cgroup2 directory; who made it removes it")
    parser.add_argument("count", type=int)
    parser.add_argument("--open", action="store_true", help="also open each node in each process's place")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpuiso-stage-") as scratch:
        set_up(Path(scratch))
        children = [start(arguments.cgroup, number) for number in range(arguments.count)]
        began = time.perf_counter()
        found = map_json(build_map(LiveHost()))
        seconds = time.perf_counter() - began
        opened = [met(arguments.cgroup / f"job-{n}") for n in range(arguments.count)] if arguments.open else []
        print(
            json.dumps({"map": found, "pids": [child.pid for child in children], "opened": opened, "seconds": seconds})
        )
        for child in children:
            child.kill()
            child.wait()
        subprocess.run(["umount", "--lazy", f"{scratch}/dev"], check=True)


if __name__ == "__main__":
    main()
