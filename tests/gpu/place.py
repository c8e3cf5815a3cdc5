# SPDX-License-Identifier: Apache-2.0
"""Processes in a place made for them: an environment, a cgroup that denies nodes, a /dev of their own."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from gpuiso.devfilter.compile import compile_rules
from gpuiso.devfilter.insn import pack
from gpuiso.kernel.bpf import prog_attach, prog_load
from gpuiso.kernel.clone3 import clone3
from gpuiso.policy.rule import Rule
from tests.tiers import cgroup2_mount

__all__ = ["CU_INIT", "cu_init", "denying_cgroup", "nobody", "own_dev", "process"]

_CLONE_NEWNS = 0x00020000
_MS_REC_PRIVATE = 1 << 14 | 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def denying_cgroup(nodes: Sequence[str]) -> Iterator[int]:
    """A descriptor of a cgroup in which ``nodes`` are denied and all else is allowed."""
    mount = cgroup2_mount()
    assert mount is not None
    rules = []
    for node in nodes:
        device = os.stat(node).st_rdev
        rules.append(Rule(False, "c", os.major(device), os.minor(device), "rwm"))
    with ExitStack() as undo:
        path = mount / f"gpuiso-gpu-test-{os.getpid()}"
        path.mkdir()
        undo.callback(path.rmdir)
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        undo.callback(os.close, directory)
        program = prog_load(pack(compile_rules(rules, default_allow=True)), name="gpuiso_dev")
        undo.callback(os.close, program)
        prog_attach(directory, program)
        yield directory


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    def raw(text: str | None) -> bytes | None:
        return None if text is None else text.encode()

    if _libc.mount(raw(source), raw(target), raw(kind), ctypes.c_ulong(flags), raw(data)) < 0:
        raise OSError(ctypes.get_errno(), f"mount {source} on {target}")


def own_dev(change: Callable[[Path], None]) -> Callable[[], None]:
    """Gives the caller a /dev of its own: a copy of the host's character nodes after ``change``."""

    def prepare() -> None:
        if _libc.unshare(_CLONE_NEWNS) < 0:
            raise OSError(ctypes.get_errno(), "unshare")
        _mount("none", "/", None, _MS_REC_PRIVATE)
        nodes = [
            (path, info)
            for path in (*Path("/dev").iterdir(), *Path("/dev/nvidia-caps").glob("*"))
            if stat.S_ISCHR((info := path.lstat()).st_mode)
        ]
        _mount("tmpfs", "/dev", "tmpfs", 0, "mode=755")
        for path, info in nodes:
            path.parent.mkdir(exist_ok=True)
            os.mknod(path, info.st_mode, info.st_rdev)
            os.chmod(path, stat.S_IMODE(info.st_mode))
        change(Path("/dev"))

    return prepare


def nobody() -> None:
    """Makes the caller an ordinary user."""
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)


@contextmanager
def process(
    env: Mapping[str, str] | None = None,
    prepare: Callable[[], None] | None = None,
    denied: Sequence[str] = (),
    argv: Sequence[str] = ("sleep", "600"),
) -> Iterator[int]:
    """A process started with ``argv`` in such a place."""
    with ExitStack() as undo:
        cgroup = undo.enter_context(denying_cgroup(denied)) if denied else None
        readable, writable = os.pipe2(os.O_CLOEXEC)
        pid, pidfd = clone3(cgroup_fd=cgroup)
        if pid == 0:
            try:
                if prepare is not None:
                    prepare()
                os.execvpe(argv[0], list(argv), {"PATH": os.environ["PATH"], **(env or {})})
            except OSError as error:
                os.write(writable, str(error).encode())
            finally:
                os._exit(127)
        os.close(writable)
        undo.callback(os.close, readable)
        undo.callback(os.close, pidfd)
        undo.callback(os.waitpid, pid, 0)
        undo.callback(os.kill, pid, signal.SIGKILL)
        failure = os.read(readable, 4096)
        assert not failure, failure.decode()
        yield pid


CU_INIT = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
code = cuda.cuInit(0)
uuids = []
count = ctypes.c_int()
if code == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
    for index in range(count.value):
        raw = (ctypes.c_ubyte * 16)()
        cuda.cuDeviceGetUuid_v2(raw, index)
        h = bytes(raw).hex()
        uuids.append(f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}")
print(json.dumps({"cuInit": code, "uuids": uuids}))
"""


def cu_init(env: Mapping[str, str], denied: Sequence[str] = ()) -> dict[str, Any]:
    """What the CUDA driver itself answers: cuInit's code and the UUIDs in its order."""
    with ExitStack() as undo:
        prefix: list[str] = []
        if denied:
            cgroup = undo.enter_context(denying_cgroup(denied))
            path = os.readlink(f"/proc/self/fd/{cgroup}")
            prefix = ["sh", "-c", f'echo $$ >{path}/cgroup.procs && exec "$@"', "sh"]
        done = subprocess.run(
            [*prefix, sys.executable, "-I", "-S", "-c", CU_INIT],
            env={"PATH": os.environ["PATH"], **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found
