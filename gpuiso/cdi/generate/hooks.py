# SPDX-License-Identifier: Apache-2.0
"""The createContainer hooks of NVIDIA's toolkit (internal/discover/hooks.go) and who runs them.

``nvidia-cdi-hook NAME ARGS``, or ``nvidia-ctk hook NAME ARGS`` where only that program is installed.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from gpuiso.cdi.generate.driver import DriverFiles, Link, environment_path, first_program
from gpuiso.cdi.generate.options import Options
from gpuiso.cdi.generate.root import Root
from gpuiso.cdi.spec import Hook
from gpuiso.errors import NotSupported
from gpuiso.host.protocol import Host

__all__ = ["HookMaker", "hook_maker"]

DEFAULT_HOOK_PATH = "/usr/bin/nvidia-cdi-hook"
_PROGRAMS = ("nvidia-cdi-hook", "nvidia-ctk")
_PLACES = ("/usr/local/bin", "/usr/bin", "/usr/local/sbin", "/usr/sbin", "/opt/bin")


@dataclass(frozen=True, slots=True)
class HookMaker:
    """``program`` is None where no hooks are wanted: then every method gives none."""

    program: str | None
    ldconfig_path: str | None = None

    def links(self, links: tuple[Link, ...]) -> tuple[Hook, ...]:
        """One hook that makes symbolic links in the container."""
        arguments = [part for link in links for part in ("--link", f"{link.target}::{link.path}")]
        return self._hook("create-symlinks", *arguments) if links else ()

    def driver(self, files: DriverFiles, *, management: bool = False) -> tuple[Hook, ...]:
        """What makes the driver's files usable in a container, in the order of the reference.

        Management containers may make device nodes, and see all GPUs, so two hooks are not for them.
        """
        hooks = self.links(files.graphics_links) + self.links(files.links)
        hooks += self._hook("enable-cuda-compat", f"--host-driver-version={files.version}")
        hooks += self.ldcache(files.library_directories)
        if not management:
            hooks += self._hook("disable-device-node-modification") + self._hook("update-application-profile")
        return hooks

    def ldcache(self, directories: tuple[str, ...]) -> tuple[Hook, ...]:
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


def hook_maker(host: Host, options: Options) -> HookMaker:
    """Who makes hooks for these options: NVIDIA's program where it is asked for, or found and nothing else
    asked.

    Raises NotSupported for gpuiso's own hook program.
    """
    if options.hooks == "gpuiso":
        raise NotSupported(
            "this version of gpuiso has no hook program of its own",
            hint="use --hooks nvidia (with NVIDIA's toolkit installed) or --hooks none",
        )
    if options.hooks == "none":
        return HookMaker(None)
    if options.hook_path is not None:
        return HookMaker(options.hook_path, options.ldconfig_path)
    root = Root(host)
    places = (*environment_path(root, "PATH"), *_PLACES)
    found = next((path for name in _PROGRAMS if (path := first_program(root, places, name)) is not None), None)
    if found is None and options.hooks == "nvidia":
        found = DEFAULT_HOOK_PATH
    return HookMaker(found, options.ldconfig_path)
