# SPDX-License-Identifier: Apache-2.0
"""Imports go down the layers of docs/architecture.md; what is slow to import is imported where it is used."""

from __future__ import annotations

import graphlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.source import Import, imports, module_name, package_files

LAYERS = (
    ("cli",),
    ("hook", "hookset", "doctor", "reclaim", "repair", "launch", "runtimes", "audit", "watch", "guard", "slo"),
    ("apply", "cdi", "govern", "grants", "oci", "systemd"),
    ("policy", "devfilter", "gpu"),
    ("host",),
    ("kernel",),
    ("errors",),
)
DEPTH = {name: depth for depth, names in enumerate(LAYERS) for name in names} | {"__main__": -1}

# Packages of one layer stand side by side; these may look at a neighbour, in one direction.
NEIGHBOURS = frozenset(
    {
        ("apply", "systemd"),  # a cgroup that systemd owns is changed through its unit
        ("apply", "govern"),  # a policy's gpu.max is handed to the governor
        ("doctor", "launch"),  # whether somebody keeps to what he was granted stands in the leases
        ("cdi", "oci"),  # what CDI describes are edits of an OCI configuration
        ("devfilter", "policy"),  # a device program is compiled from rules, and explained in rules
        ("hookset", "hook"),  # what is compiled for the hook is what the hook reads
        ("repair", "doctor"),  # what is put right is what the doctor finds: which gate denies which node
        ("policy", "gpu"),  # a rule may name a GPU, which stands for nodes
    }
)

KERNEL_IMPORTS = frozenset(
    {
        "__future__",
        "collections.abc",
        "ctypes",
        "dataclasses",
        "enum",
        "errno",
        "mmap",
        "os",
        "struct",
        "typing",
    }
)
HEAVY = frozenset({"docker", "jsonschema", "pynvml", "pyroute2", "pystemd", "rich", "tomlkit", "typer", "yaml"})
# Packages whose answers are functions of what they are given: they reach for nothing themselves.
# What a hook may import of gpuiso beside kernel/, and only where it is used: the pure core of the compiler, for a set
# of GPUs that is asked for the first time. It is not written twice for the hook's sake.
HOOK_MAY_COMPILE = frozenset(
    {
        "gpuiso.devfilter.compile",
        "gpuiso.devfilter.insn",
        "gpuiso.policy.quota",
        "gpuiso.policy.rule",
        "gpuiso.policy.slices",
    }
)
PURE = frozenset({"policy", "devfilter", "gpu", "doctor"})
REACHES_OUT = frozenset({"ctypes", "docker", "glob", "pynvml", "pyroute2", "pystemd", "socket", "subprocess"})


def package_of(module: str) -> str:
    """``gpuiso.host.live`` → ``host``; the package itself (its version) → ``""``."""
    return ".".join(module.split(".")[1:2])


def may_import(importer: str, imported: str) -> bool:
    """Whether package ``importer`` may import from package ``imported``; both are names below gpuiso."""
    if imported in ("", "__version__", importer):
        return True
    if importer == "":
        return False
    return DEPTH[importer] < DEPTH[imported] or (importer, imported) in NEIGHBOURS


def violations(module: str, found: list[Import]) -> Iterator[str]:
    """What is wrong with the imports of one module, one sentence each."""
    package = package_of(module)
    if package and package not in DEPTH:
        yield f"{module}: package {package!r} has no place in the layers"
        return
    for entry in found:
        where = f"{module}, line {entry.line}: imports {entry.module}"
        imported = package_of(entry.module)
        if entry.top == "gpuiso":
            if imported not in DEPTH and imported not in ("", "__version__"):
                yield f"{where}, which has no place in the layers"
            elif package != "hook" and not may_import(package, imported):
                yield f"{where}; imports go down, and {imported} is not below {package or 'gpuiso'}"
        elif package == "kernel" and entry.module not in KERNEL_IMPORTS:
            yield f"{where}; kernel/ imports only {', '.join(sorted(KERNEL_IMPORTS))}"
        if package == "hook" and not _hook_may(entry):
            yield f"{where}; hook/ imports only the standard library, kernel/ and, late, the compiler's core"
        if entry.top in HEAVY and package != "cli" and not (entry.lazy or entry.typing_only):
            yield f"{where} at module level; it is slow to import, so import it where it is used"
        if package in PURE and entry.top in REACHES_OUT and not entry.typing_only:
            yield f"{where}; {package}/ learns about a host from host/ alone"


def _hook_may(entry: Import) -> bool:
    if entry.top == "gpuiso":
        if entry.module in HOOK_MAY_COMPILE:
            return entry.lazy
        return package_of(entry.module) in ("hook", "kernel", "", "__version__")
    return entry.top in sys.stdlib_module_names


@pytest.mark.parametrize("path", package_files(), ids=str)
def test_imports_go_down(path: Path) -> None:
    found = list(violations(module_name(path), imports(path)))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "imported", "lazy", "complaint"),
    [
        ("gpuiso.gpu.model", "gpuiso.host.protocol", False, None),
        ("gpuiso.gpu.model", "gpuiso.errors", False, None),
        ("gpuiso.host.live", "gpuiso.gpu.model", True, "gpu is not below host"),
        ("gpuiso.gpu.model", "gpuiso.policy.rules", False, "policy is not below gpu"),
        ("gpuiso.policy.resolve", "gpuiso.gpu.model", False, None),
        ("gpuiso.doctor.report", "gpuiso.cli.main", False, "cli is not below doctor"),
        ("gpuiso.errors", "gpuiso.kernel.bpf", False, "kernel is not below errors"),
        ("gpuiso.kernel.bpf", "gpuiso.errors", False, None),
        ("gpuiso", "gpuiso.errors", False, "errors is not below gpuiso"),
        ("gpuiso.cli.main", "gpuiso.__version__", False, None),
        ("gpuiso.utils", "os", False, "no place in the layers"),
        ("gpuiso.cli.main", "gpuiso.utils", False, "no place in the layers"),
        ("gpuiso.kernel.bpf", "subprocess", False, "kernel/ imports only"),
        ("gpuiso.kernel.bpf", "collections.abc", False, None),
        ("gpuiso.hook.main", "gpuiso.kernel.bpf", False, None),
        ("gpuiso.hook.main", "gpuiso.errors", False, "standard library, kernel/"),
        ("gpuiso.hook.main", "gpuiso.policy.parse", True, "standard library, kernel/"),
        ("gpuiso.hook.main", "gpuiso.policy.rule", False, "standard library, kernel/"),
        ("gpuiso.hook.main", "gpuiso.policy.rule", True, None),
        ("gpuiso.hook.main", "yaml", True, "standard library, kernel/"),
        ("gpuiso.cdi.document", "yaml", False, "slow to import"),
        ("gpuiso.cdi.document", "yaml", True, None),
        ("gpuiso.cli.render", "rich.tree", False, None),
        ("gpuiso.gpu.model", "subprocess", True, "from host/ alone"),
    ],
)
def test_the_check_itself(module: str, imported: str, lazy: bool, complaint: str | None) -> None:
    found = list(violations(module, [Import(imported, 1, lazy, typing_only=False)]))
    if complaint is None:
        assert found == []
    else:
        assert [sentence for sentence in found if complaint in sentence]


def test_type_checking_imports_may_be_heavy_but_not_upward() -> None:
    heavy = Import("yaml", 1, lazy=False, typing_only=True)
    upward = Import("gpuiso.cli.main", 2, lazy=False, typing_only=True)
    assert list(violations("gpuiso.cdi.document", [heavy])) == []
    assert list(violations("gpuiso.cdi.document", [upward])) != []


def test_neighbours_are_of_one_layer_and_have_no_cycle() -> None:
    assert [pair for pair in NEIGHBOURS if DEPTH[pair[0]] != DEPTH[pair[1]]] == []
    graph: dict[str, set[str]] = {}
    for importer, imported in NEIGHBOURS:
        graph.setdefault(importer, set()).add(imported)
    graphlib.TopologicalSorter(graph).prepare()
