# SPDX-License-Identifier: Apache-2.0
"""Boot an image inside namespaces and use it like a machine."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from tests.lab.errors import CommandFailed, LabError
from tests.lab.image import GUEST, Image, image
from tests.lab.node import Node, gpu_nodes
from tests.lab.state import Process, State, sweep
from tests.lab.wheels import scripts, site_directory
from tests.support import REPOSITORY, SHARED
from tests.tiers import cgroup2_mount

ENVIRONMENT = {
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONPATH": "/opt/gpuiso:/opt/site",
    "TERM": os.environ.get("TERM", "dumb"),
}

# The unit whose cgroup commands run in: to systemd they are a service like any other.
SHELL_UNIT = "lab-shell.service"
SHELL_CGROUP = f"/system.slice/{SHELL_UNIT}"
MANAGER = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"]
NAMESPACES = ["--mount", "--propagation", "private", "--pid", "--cgroup", "--uts", "--ipc", "--net"]

SCRIPT = """#!/usr/bin/python3
import sys
sys.path[:0] = ["/opt/gpuiso", "/opt/site"]
sys.dont_write_bytecode = True
from {module} import {function}
sys.exit({function}())
"""

_numbers = itertools.count()


class Lab:
    """A running container host. Made by :meth:`boot`; a context manager that ends it.

    The thread that boots it must live as long as it does: when that thread ends, so does the lab.
    """

    def __init__(self, source: Image, state: State, starter: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self.image = source
        self._state = state
        self._starter = starter
        self._log = log

    @classmethod
    def boot(
        cls,
        release: str = "trixie",
        *,
        nodes: Sequence[Node] | None = None,
        checkout: Path = REPOSITORY,
        size: str = "4G",
        timeout: float = 90.0,
    ) -> Lab:
        """Boot a release and wait until systemd, D-Bus and Docker answer.

        ``nodes`` are made in /dev (default: :func:`tests.lab.node.gpu_nodes`), ``checkout`` is shown read-only at
        /opt/gpuiso, ``size`` bounds what the lab can write, all of it in memory. Raises :class:`LabError`.
        """
        if os.geteuid() != 0:
            raise LabError("a lab needs root")
        sweep()
        source = image(release)
        lab = cls._start(source, gpu_nodes() if nodes is None else nodes, checkout, size)
        try:
            lab._wait_until_ready(time.monotonic() + timeout)
            lab._furnish()
        except BaseException:
            lab.close()
            raise
        return lab

    @classmethod
    def _start(cls, source: Image, nodes: Sequence[Node], checkout: Path, size: str) -> Lab:
        mount = cgroup2_mount()
        if mount is None:
            raise LabError("a lab needs a cgroup2 mount")
        name = f"gpuiso-lab-{os.getpid()}-{next(_numbers)}"
        state = State(name, Process.of(os.getpid()), mount / name)
        state.save()
        scratch = source.root.parent / "scratch"
        scratch.mkdir(exist_ok=True)
        environment = ENVIRONMENT | {
            "IMAGE": str(source.root),
            "SCRATCH": str(scratch),
            "SIZE": size,
            "CHECKOUT": str(checkout),
            "SHARED": str(SHARED or ""),
            "SITE": str(site_directory(source.python)),
        }
        log = tempfile.TemporaryFile()  # noqa: SIM115 (the lab owns it)
        state.cgroup.mkdir()
        enter = 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"'
        starter = subprocess.Popen(
            [
                *["setpriv", "--pdeathsig", "KILL", "sh", "-ec", enter, "sh", str(state.cgroup)],
                *["unshare", *NAMESPACES, "--fork", "--kill-child", "bash", str(GUEST / "boot.sh")],
                *(f"{node.path}:{node.major}:{node.minor}:{node.mode:o}" for node in nodes),
            ],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd="/",
        )
        lab = cls(source, state, starter, log)
        try:
            lab._hand_over(mount)
        except BaseException:
            lab.close()
            raise
        return lab

    def _hand_over(self, mount: Path) -> None:
        """Find the first process of the namespaces, move its starter out of the lab's cgroup, let it go on."""
        children = Path("/proc", str(self._starter.pid), "task", str(self._starter.pid), "children")
        deadline = time.monotonic() + 10
        while True:
            if self._starter.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"the lab's namespaces cannot be made:\n{self.log()}")
            # Before unshare runs, the starter may have other children.
            pids = [int(pid) for pid in children.read_text().split()]
            if pids and _comm(self._starter.pid) == "unshare":
                self._state.init = Process.of(pids[0])
                break
            time.sleep(0.005)
        self._state.save()
        (mount / _own_cgroup().lstrip("/") / "cgroup.procs").write_text(str(self._starter.pid))
        assert self._starter.stdin is not None
        with self._starter.stdin as stdin:
            stdin.write(b"go\n")

    @property
    def pid(self) -> int:
        """Its systemd, as a pid of the outside."""
        assert self._state.init is not None
        return self._state.init.pid

    @property
    def cgroup(self) -> Path:
        """The outside's path of what is ``/`` in the lab's cgroup tree."""
        return self._state.cgroup

    def host_cgroup(self, path: str) -> Path:
        """The outside's path of a cgroup of the lab."""
        return self.cgroup / path.lstrip("/")

    def host_pid(self, pid: int) -> int:
        """The outside's number of a process that the lab calls ``pid``. Raises :class:`LabError` without one."""
        for procs in self.cgroup.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                for candidate in procs.read_text().split():
                    if _pid_in_lab(candidate) == pid:
                        return int(candidate)
        raise LabError(f"the lab has no process {pid}")

    def log(self) -> str:
        """What the boot script and systemd have printed, the last part of it; nothing once the lab is closed."""
        if self._log.closed:
            return ""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4000:]

    def command(self, argv: Sequence[str], *, cgroup: str = SHELL_CGROUP) -> list[str]:
        """The outside's command line that runs ``argv`` in the lab, in a cgroup of the lab."""
        enter = 'echo $$ >"$1/cgroup.procs"; shift; exec nsenter "$@"'
        where = str(self.host_cgroup(cgroup))
        return ["sh", "-ec", enter, "sh", where, "-t", str(self.pid), "-a", "--", *argv]

    def run(
        self,
        argv: Sequence[str],
        *,
        input: str | bytes | None = None,  # noqa: A002 (the name subprocess.run gives it)
        check: bool = True,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        cgroup: str = SHELL_CGROUP,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root in the lab; its output is decoded as UTF-8.

        With ``check`` raises :class:`CommandFailed` for a status other than 0. Raises :class:`LabError` after
        ``timeout`` seconds (the command is killed), and when the lab is gone.
        """
        data = input.encode() if isinstance(input, str) else input
        done = self._run(argv, data, timeout, ENVIRONMENT | dict(env or {}), cgroup)
        text = subprocess.CompletedProcess(
            list(argv), done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )
        if check and text.returncode != 0:
            raise CommandFailed(text)
        return text

    def _run(
        self, argv: Sequence[str], data: bytes | None, timeout: float, env: Mapping[str, str], cgroup: str
    ) -> subprocess.CompletedProcess[bytes]:
        if self._starter.poll() is not None:
            raise LabError(f"the lab is gone:\n{self.log()}")
        process = subprocess.Popen(
            self.command(argv, cgroup=cgroup),
            env=env,
            stdin=subprocess.DEVNULL if data is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(data, timeout)
        except BaseException as error:
            # nsenter forks into the pid namespace: killing it alone would leave the command.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise LabError(f"{' '.join(argv)}: no end after {timeout:.0f} s") from None
            raise
        return subprocess.CompletedProcess(list(argv), process.returncode, stdout, stderr)

    def sh(self, script: str, *arguments: str, check: bool = True, timeout: float = 60.0) -> str:
        """Run a shell script (stops at the first failure); returns its standard output, stripped."""
        return self.run(["sh", "-euc", script, "sh", *arguments], check=check, timeout=timeout).stdout.strip()

    def python(
        self, code: str, *arguments: str, check: bool = True, timeout: float = 60.0, cgroup: str = SHELL_CGROUP
    ) -> subprocess.CompletedProcess[str]:
        """Run Python code with the image's python3; ``import gpuiso`` finds the checkout."""
        return self.run(["python3", "-c", code, *arguments], check=check, timeout=timeout, cgroup=cgroup)

    def put(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Write a file, and the directories above it."""
        script = 'mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1"'
        self.run(["sh", "-euc", script, "sh", path, f"{mode:o}"], input=content)

    def get(self, path: str) -> bytes:
        """Content of a file. Raises :class:`CommandFailed`."""
        done = self._run(["cat", "--", path], None, 60.0, ENVIRONMENT, SHELL_CGROUP)
        if done.returncode != 0:
            raise CommandFailed(
                subprocess.CompletedProcess(done.args, done.returncode, "", done.stderr.decode(errors="replace"))
            )
        return done.stdout

    def mknod(self, node: Node) -> None:
        """Make a character device node, replacing one of the same path."""
        self.sh(
            'rm -f "$1"; mkdir -p "$(dirname "$1")"; mknod -m "$4" "$1" c "$2" "$3"',
            *(node.path, str(node.major), str(node.minor), f"{node.mode:o}"),
        )

    def wait_for(self, argv: Sequence[str], timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Repeat a command until it succeeds. Raises :class:`CommandFailed` with its last failure."""
        deadline = time.monotonic() + timeout
        while True:
            done = self.run(argv, check=False)
            if done.returncode == 0:
                return done
            if time.monotonic() > deadline:
                raise CommandFailed(done)
            time.sleep(0.1)

    def _wait_until_ready(self, deadline: float) -> None:
        unit = ["--unit", SHELL_UNIT, "--property", "Delegate=yes", "--property", "DefaultDependencies=no"]
        for argv, cgroup in (
            (["systemd-run", "--quiet", *unit, "sleep", "infinity"], "/init.scope"),
            (["sh", "-c", "systemctl is-system-running --wait | grep -E 'running|degraded'"], SHELL_CGROUP),
            (["busctl", "get-property", *MANAGER, "Version"], SHELL_CGROUP),
            (["docker", "info"], SHELL_CGROUP),
        ):
            self._wait_for_answer(argv, cgroup, deadline)

    def _wait_for_answer(self, argv: list[str], cgroup: str, deadline: float) -> None:
        while True:
            left = deadline - time.monotonic()
            done = self._run(argv, None, max(left, 1.0), ENVIRONMENT, cgroup)
            if done.returncode == 0:
                return
            if left < 0:
                failed = self._run(["systemctl", "--failed", "--no-legend"], None, 10.0, ENVIRONMENT, "/init.scope")
                says = (done.stderr + failed.stdout).decode(errors="replace")
                raise LabError(f"the lab does not come up: {' '.join(argv)} fails\n{says}\n{self.log()}")
            time.sleep(0.05)

    def _furnish(self) -> None:
        """Put the project's commands on the lab's PATH."""
        for name, entry in scripts().items():
            module, _, function = entry.partition(":")
            text = SCRIPT.format(module=module, function=function)
            self.put(f"/usr/local/bin/{name}", text.encode(), 0o755)

    def close(self) -> None:
        """End every process of the lab and remove what it had outside. May be called again."""
        self._state.end()
        if self._starter.stdin is not None:
            self._starter.stdin.close()
        self._starter.kill()
        self._starter.wait()
        self._log.close()

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def booted(release: str) -> Iterator[Lab]:
    """A lab for the length of a with block."""
    with Lab.boot(release) as lab:
        yield lab


def _own_cgroup() -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return line[3:]
    raise LabError("this process is in no cgroup2 cgroup")


def _comm(pid: int) -> str:
    return Path("/proc", str(pid), "comm").read_text().strip()


def _pid_in_lab(pid: str) -> int | None:
    """What the namespace one level below ours calls a process of ours."""
    for line in Path("/proc", pid, "status").read_text().splitlines():
        if line.startswith("NSpid:"):
            numbers = line.split()[1:]
            return int(numbers[1]) if len(numbers) > 1 else None
    return None
