# SPDX-License-Identifier: Apache-2.0
"""How engines are told of the hook: hooks.d files, CDI devices, and the hooks of a bundle's config.json.

Every definition gives the hook an environment of its own. Without one, runc starts createContainer hooks with the
container's (CVE-2025-23266).
"""

from __future__ import annotations

import json
from typing import Any

from gpuiso.cdi.generate.hooks import ENVIRONMENT, HOOK_PATH, TIMEOUT, runtime_hooks
from gpuiso.cdi.spec import ContainerEdits, Device, Spec
from gpuiso.oci.config import OciConfig

__all__ = ["ENVIRONMENT", "HOOK_PATH", "POLICY_KIND", "add_hooks", "hooks_d", "policy_spec"]

POLICY_KIND = "gpuiso.dev/policy"


def hooks_d(path: str = HOOK_PATH, *, always: bool = False) -> dict[str, str]:
    """Files of a hooks.d directory by name, for podman and CRI-O: oci-hooks(5), schema 1.0.0.

    They are for containers that have an annotation of gpuiso's, or ``always``: for every one, so that grants hold for
    those that ask for nothing.
    """
    when: dict[str, Any] = {"always": True} if always else {"annotations": {r"^gpuiso\.": ".*"}}
    files = {}
    for stage in ("createRuntime", "poststop"):
        definition = {
            "version": "1.0.0",
            "hook": {"path": path, "args": ["gpuiso-hook", stage], "env": list(ENVIRONMENT), "timeout": TIMEOUT},
            "when": when,
            "stages": [stage],
        }
        files[f"gpuiso-{stage.lower()}.json"] = json.dumps(definition, indent=2) + "\n"
    return files


def policy_spec(names: tuple[str, ...], path: str = HOOK_PATH) -> Spec:
    """A CDI device for each policy: a container that is given it is held to it."""
    devices = tuple(
        Device(name, container_edits=ContainerEdits(hooks=runtime_hooks("--policy", name, path=path))) for name in names
    )
    return Spec(kind=POLICY_KIND, version="0.3.0", devices=devices)


def add_hooks(config: dict[str, Any], options: list[str], path: str = HOOK_PATH) -> dict[str, Any]:
    """The config with createRuntime (and ``options`` for it) and poststop of gpuiso; those it had of gpuiso go."""
    edited = OciConfig(config)
    for hooks in (edited.document.get("hooks") or {}).values():
        if isinstance(hooks, list):
            hooks[:] = [hook for hook in hooks if not _is_ours(hook)]
    for stage, more in (("createRuntime", options), ("poststop", [])):
        args = ["gpuiso-hook", stage, *more]
        edited.add_hook(stage, {"path": path, "args": args, "env": list(ENVIRONMENT), "timeout": TIMEOUT})
    return edited.finish()


def _is_ours(hook: Any) -> bool:
    """createContainer hooks come from a CDI spec and stay."""
    args = hook.get("args") if isinstance(hook, dict) else None
    return isinstance(args, list) and args[:1] == ["gpuiso-hook"] and args[1:2] != ["createContainer"]
