# SPDX-License-Identifier: Apache-2.0
"""Root filesystems that try to lead the hook outside (the classes of CVE-2024-0132 and CVE-2025-23359)."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuiso.hook.errors import HookError
from gpuiso.kernel.libc import libc
from tests.children import in_child
from tests.hook.parts import LIB, make_bundle, own_mounts, prepare, run_hook, state_document, tree
from tests.tiers import requires

ROUNDS = 10_000
PROCESSES = 100
GPUS = {"linux": {"devices": [{"path": "/dev/nvidia0"}]}}
WORK = [
    *("--link", f"libcuda.so.1::{LIB}/libcuda.so", "--library", f"{LIB}=libcuda.so.1"),
    *("--application-profile", "--chmod", "700:/etc"),
]

SWAP = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
os.write(1, b"go")
while True:
    for name in sys.argv[1:]:
        # RENAME_EXCHANGE: there is no moment without a name.
        libc.renameat2(-100, name.encode(), -100, (name + ".link").encode(), 2)
"""


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What the hook must never touch: directories with the names that it writes to."""
    path = tmp_path / "outside"
    for name in ("etc", "lib", "etc/nvidia"):
        (path / name).mkdir(parents=True)
    (path / "etc/ld.so.cache").write_bytes(b"of the host")
    (path / "lib/libcuda.so").write_text("of the host")
    return path


def link_to(rootfs: Path, name: str, target: str) -> None:
    (rootfs / name).parent.mkdir(parents=True, exist_ok=True)
    (rootfs / name).symlink_to(target)


def chain(rootfs: Path, outside: Path) -> None:
    link_to(rootfs, "a", str(outside))
    link_to(rootfs, "etc", "a/etc")


ATTACKS: dict[str, Callable[[Path, Path], None]] = {
    "absolute directory": lambda rootfs, out: link_to(rootfs, "etc", f"{out}/etc"),
    "relative directory": lambda rootfs, out: link_to(rootfs, "etc", "../../outside/etc"),
    "far up": lambda rootfs, out: link_to(rootfs, "etc", f"{'../' * 40}{str(out)[1:]}/etc"),
    "library directory": lambda rootfs, out: link_to(rootfs, LIB[1:], f"{out}/lib"),
    "the file": lambda rootfs, out: link_to(rootfs, "etc/ld.so.cache", f"{out}/etc/ld.so.cache"),
    "the link": lambda rootfs, out: link_to(rootfs, f"{LIB[1:]}/libcuda.so", f"{out}/lib/libcuda.so"),
    "a chain": chain,
    "itself": lambda rootfs, out: link_to(rootfs, "etc", "etc"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_links_lead_nowhere_else(tmp_path: Path, outside: Path, attack: str) -> None:
    rootfs = make_bundle(tmp_path / "bundle", GPUS)
    ATTACKS[attack](rootfs, outside)
    before = tree(outside)
    with contextlib.suppress(HookError):
        prepare(tmp_path / "bundle", *WORK)
    assert tree(outside) == before


@requires("kernel")
@pytest.mark.parametrize("way", ["/proc/self/root", "/proc/1/root", "/proc/self/cwd", "/proc/self/fd/3"])
def test_links_of_proc_are_refused(tmp_path: Path, outside: Path, way: str) -> None:
    rootfs = make_bundle(tmp_path / "bundle", GPUS)
    (rootfs / "proc").mkdir()
    link_to(rootfs, "etc", f"{way}{outside}/etc" if way.endswith("root") else f"{way}/etc")
    before = tree(outside)

    def look() -> None:
        own_mounts()
        subprocess.run(["mount", "--bind", "/proc", rootfs / "proc"], check=True)
        os.chdir(outside)
        os.dup2(os.open(outside, os.O_RDONLY), 3)
        with pytest.raises(HookError, match=r"cannot .* in the container"):
            prepare(tmp_path / "bundle", *WORK)

    assert in_child(look) == 0
    assert tree(outside) == before


@pytest.mark.parametrize("kind", ["fifo", "socket", "directory"])
def test_what_only_seems_to_be_the_cache_is_not_opened(tmp_path: Path, kind: str) -> None:
    rootfs = make_bundle(tmp_path)
    (rootfs / "etc").mkdir()
    place = rootfs / "etc/ld.so.cache"
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "socket":
        os.mknod(place, 0o140644)
    else:
        place.mkdir()
    with contextlib.suppress(HookError):
        prepare(tmp_path, "--library", f"{LIB}=libcuda.so.1")
    assert place.is_dir() == (kind == "directory")
    assert place.is_file() == (kind != "directory")


@contextlib.contextmanager
def swapping(*paths: Path) -> Iterator[None]:
    """Somebody who exchanges each path with its ``.link`` all the time."""
    process = subprocess.Popen([sys.executable, "-IS", "-c", SWAP, *map(str, paths)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(2) == b"go"
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


@requires("kernel")
def test_directories_swapped_for_links_while_the_hook_runs(tmp_path: Path, outside: Path) -> None:
    bundle = tmp_path / "bundle"
    rootfs = make_bundle(bundle, GPUS)
    places = [rootfs / "etc", rootfs / LIB[1:]]
    for place, target in zip(places, (outside / "etc", outside / "lib"), strict=True):
        place.mkdir(parents=True)
        Path(f"{place}.link").symlink_to(target)
        # Where the link leads for the container: so a round that meets it is seen.
        (rootfs / str(target)[1:]).mkdir(parents=True)
    before = tree(outside)
    failed = 0
    with swapping(*places):
        for number in range(ROUNDS):
            work = ["--link", f"l{number}::{LIB}/libcuda.so", "--library", f"{LIB}=lib{number % 97}.so"]
            try:
                prepare(bundle, *work, "--chmod", f"{700 + number % 7}:/etc")
            except HookError:
                failed += 1
        for number in range(PROCESSES):
            state = json.dumps(state_document(bundle)).encode()
            failed += run_hook("createContainer", "--link", f"p{number}::{LIB}/libcuda.so", stdin=state).returncode
    assert tree(outside) == before
    # It was a race: rounds met the directory and the link, and hardly any had to give up.
    inside = rootfs / str(outside)[1:]
    assert (inside / "lib/libcuda.so").is_symlink()
    assert (inside / "etc/ld.so.cache").is_file()
    assert failed < ROUNDS / 2


def test_the_swapper_has_the_call_it_needs(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to("nowhere")
    names = [str(tmp_path / name).encode() for name in "ab"]
    assert libc.renameat2(-100, names[0], -100, names[1], 2) == 0, os.strerror(ctypes.get_errno())
    assert (tmp_path / "a").is_symlink()
