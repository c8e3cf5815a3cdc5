# SPDX-License-Identifier: Apache-2.0
"""The createContainer hooks of a spec and who runs them.

NVIDIA's toolkit (internal/discover/hooks.go) has one for each piece of work: ``nvidia-cdi-hook NAME ARGS``, or
``nvidia-ctk hook NAME ARGS`` where only that program is installed. gpuiso's does the same work in one
(:mod:`gpuiso.hook.arguments` lists its options).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from gpuiso.cdi.generate.driver import (
    DriverFiles,
    Link,
    depth_and_path,
    environment_path,
    first_program,
    parent_directories,
)
from gpuiso.cdi.generate.options import Options
from gpuiso.cdi.generate.root import Root
from gpuiso.cdi.spec import Hook
from gpuiso.host.protocol import Host

__all__ = ["ENVIRONMENT", "HOOK_PATH", "HookMaker", "NvidiaHooks", "OwnHook", "hook_maker", "runtime_hooks"]

HOOK_PATH = "/usr/bin/gpuiso-hook"
ENVIRONMENT = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)
"""A hook without an environment of its own gets the container's from runc (CVE-2025-23266)."""

TIMEOUT = 60
"""Seconds; a systemd that answers slowly may take half of it."""

DEFAULT_HOOK_PATH = "/usr/bin/nvidia-cdi-hook"
_PROGRAMS = ("nvidia-cdi-hook", "nvidia-ctk")
_PLACES = ("/usr/local/bin", "/usr/bin", "/usr/local/sbin", "/usr/sbin", "/opt/bin")


class HookMaker(Protocol):
    """Makes the hooks of a spec."""

    def links(self, links: tuple[Link, ...]) -> tuple[Hook, ...]:
        """What makes symbolic links in the container."""

    def driver(self, files: DriverFiles, *, management: bool = False) -> tuple[Hook, ...]:
        """What makes the driver's files usable in a container.

        Management containers may make device nodes, and see all GPUs, so two pieces of work are not for them.
        """

    def libraries(self, paths: tuple[str, ...]) -> tuple[Hook, ...]:
        """What makes the linker find libraries."""


@dataclass(frozen=True, slots=True)
class NvidiaHooks:
    """``program`` is None where no hooks are wanted: then every method gives none."""

    program: str | None
    ldconfig_path: str | None = None

    def links(self, links: tuple[Link, ...]) -> tuple[Hook, ...]:
        arguments = [part for link in links for part in ("--link", f"{link.target}::{link.path}")]
        return self._hook("create-symlinks", *arguments) if links else ()

    def driver(self, files: DriverFiles, *, management: bool = False) -> tuple[Hook, ...]:
        """In the order of the reference."""
        hooks = self.links(files.graphics_links) + self.links(files.links)
        hooks += self._hook("enable-cuda-compat", f"--host-driver-version={files.version}")
        hooks += self._ldcache(files.library_directories)
        if not management:
            hooks += self._hook("disable-device-node-modification") + self._hook("update-application-profile")
        return hooks

    def libraries(self, paths: tuple[str, ...]) -> tuple[Hook, ...]:
        return self._ldcache(parent_directories(paths))

    def _ldcache(self, directories: tuple[str, ...]) -> tuple[Hook, ...]:
        """One hook that runs ldconfig for ``directories``."""
        if not directories:
            return ()
        arguments = ["--ldconfig-path", self.ldconfig_path] if self.ldconfig_path is not None else []
        arguments += [part for directory in directories for part in ("--folder", directory)]
        return self._hook("update-ldcache", *arguments)

    def _hook(self, name: str, *arguments: str) -> tuple[Hook, ...]:
        if self.program is None:
            return ()
        program = posixpath.basename(self.program)
        words = (program, "hook") if program == "nvidia-ctk" else (program,)
        return (
            Hook(
                hook_name="createContainer",
                path=self.program,
                args=(*words, name, *arguments),
                env=("NVIDIA_CTK_DEBUG=false",),
            ),
        )


class OwnHook:
    """One entry of gpuiso's for all the work of a piece of edits."""

    def links(self, links: tuple[Link, ...]) -> tuple[Hook, ...]:
        return self._hook(_link_options(links))

    def driver(self, files: DriverFiles, *, management: bool = False) -> tuple[Hook, ...]:
        links = files.graphics_links + files.links
        paths = [mount.container_path for mount in files.mounts]
        options = [*_link_options(links), *_library_options(paths, links)]
        options.append(f"--host-driver-version={files.version}")
        if not management:
            options += ["--no-node-modification", "--application-profile"]
        return self._hook(options)

    def libraries(self, paths: tuple[str, ...]) -> tuple[Hook, ...]:
        return self._hook(_library_options(paths, ()))

    def _hook(self, options: list[str]) -> tuple[Hook, ...]:
        if not options:
            return ()
        args = ("gpuiso-hook", "createContainer", *options)
        return (Hook(hook_name="createContainer", path=HOOK_PATH, args=args, env=ENVIRONMENT),)


def runtime_hooks(*options: str, path: str = HOOK_PATH) -> tuple[Hook, ...]:
    """What holds a container to grants, and to the policy that ``options`` name, until it ends."""
    stages = (("createRuntime", options), ("poststop", ()))
    return tuple(
        Hook(hook_name=stage, path=path, args=("gpuiso-hook", stage, *more), env=ENVIRONMENT, timeout=TIMEOUT)
        for stage, more in stages
    )


def _link_options(links: tuple[Link, ...]) -> list[str]:
    return [part for link in links for part in ("--link", f"{link.target}::{link.path}")]


def _library_options(paths: Iterable[str], links: tuple[Link, ...]) -> list[str]:
    """The names by which the linker is to find libraries: their own and those of their links, by directory.

    ldconfig would find the same there, and what others put beside it.
    """
    names: dict[str, dict[str, None]] = {}
    for path in [*paths, *(link.path for link in links)]:
        directory, name = posixpath.split(path)
        if name.startswith("lib") and ".so" in name:
            names.setdefault(directory, {})[name] = None
    return [
        part
        for directory in sorted(names, key=depth_and_path)
        for part in ("--library", f"{directory}={','.join(names[directory])}")
    ]


def hook_maker(host: Host, options: Options) -> HookMaker:
    """Who makes hooks for these options; where none is named, whose program is installed, gpuiso's first."""
    root = Root(host)
    if options.hooks == "none":
        return NvidiaHooks(None)
    if options.hook_path is not None and options.hooks != "gpuiso":
        return NvidiaHooks(options.hook_path, options.ldconfig_path)
    if options.hooks == "gpuiso" or (options.hooks == "auto" and root.stat(HOOK_PATH) is not None):
        return OwnHook()
    places = (*environment_path(root, "PATH"), *_PLACES)
    found = next((path for name in _PROGRAMS if (path := first_program(root, places, name)) is not None), None)
    if found is None and options.hooks == "nvidia":
        found = DEFAULT_HOOK_PATH
    return NvidiaHooks(found, options.ldconfig_path)
