# SPDX-License-Identifier: Apache-2.0
"""From what was asked for to a start: everything that can be known before GPUs are leased, then with them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuiso.apply.calls import Calls
from gpuiso.errors import NotFound, NotSupported
from gpuiso.gpu.inventory import build_inventory
from gpuiso.gpu.model import DeviceNode, Inventory
from gpuiso.grants.bearer import Bearer
from gpuiso.grants.decide import permitted
from gpuiso.grants.document import load_grants
from gpuiso.grants.spec import Request, parse_request
from gpuiso.grants.units import Unit, units_of
from gpuiso.host import process
from gpuiso.host.protocol import Host
from gpuiso.launch.account import Account, find_account, require_privilege
from gpuiso.launch.cgroups import Cgroups, boot_id
from gpuiso.launch.choose import choose, held_by, taken_by
from gpuiso.launch.environment import Environment, compose, inherited
from gpuiso.launch.home import Home, closed_units, find_home
from gpuiso.launch.keeper import Keeper
from gpuiso.launch.lease import Lease, Ticket
from gpuiso.launch.memory import memory_limit
from gpuiso.launch.rules import launch_policy
from gpuiso.launch.start import Start, find_program
from gpuiso.launch.store import Held, Leases, Who
from gpuiso.launch.usage import unleased
from gpuiso.policy.document import Document
from gpuiso.policy.gpus import gpu_nodes, mig_nodes
from gpuiso.policy.limits import Bytes, GpuMax
from gpuiso.policy.resolve import ResolvedPolicy

__all__ = ["Options", "Prepared", "prepare"]

_SETTLE = 0.2  # seconds


@dataclass(frozen=True)
class Options:
    """What the command line asks for; ``wait_for_gpu`` is seconds."""

    command: tuple[str, ...]
    gpus: str
    gpu_max: GpuMax | None = None
    gpu_memory: Bytes | None = None
    policy: Document | None = None
    variables: tuple[tuple[str, str], ...] = ()
    slice: str | None = None
    name: str | None = None
    user: str | None = None
    private_dev: bool = False
    share: bool = False
    wait_for_gpu: float = 0.0


@dataclass(frozen=True)
class Prepared:
    """A launch without GPUs yet. ``closed`` says which units something above denies."""

    options: Options
    host: Host
    calls: Calls
    cgroups: Cgroups
    leases: Leases
    inventory: Inventory
    units: tuple[Unit, ...]
    request: Request
    account: Account
    most: int | None
    gpu_max: GpuMax | None
    memory: Bytes | None
    home: Home
    closed: Mapping[str, str]
    program: str

    def choose(self, fresh: Callable[[], Host]) -> tuple[Unit, ...]:
        """The units that a launch would get now. Nothing is leased.

        :raises NotFound: they cannot be had now.
        """
        leases, waiting = self.leases.listing()
        ticket = Ticket(
            0, os.getpid(), self.account.uid, self.request.slots, self.options.share, self.most, 0, self.options.gpus
        )
        choice = choose(self.units, ticket, leases, waiting, self._busy(leases, fresh), last=True)
        if choice.units is None:
            raise NotFound(f"the GPUs asked for ({self.options.gpus}) cannot be had now: {choice.why}")
        return tuple(unit for unit in self.units if unit.id in choice.units)

    def take(self, fresh: Callable[[], Host]) -> Held:
        """Lease them. ``fresh`` gives a host that remembers nothing. :raises NotFound: they cannot be had."""
        place = None if self.home.target is None else self.home.target.v2
        who = Who(
            self.home.name,
            self.account.uid,
            self.account.name,
            self.options.command,
            self.most,
            None if self.gpu_max is None else str(self.gpu_max),
            None if self.memory is None else str(self.memory),
            None if place is None else self.cgroups.planned(place.mount, place.cgroup),
        )
        return self.leases.take(
            self.request,
            self.units,
            who,
            share=self.options.share,
            wait=self.options.wait_for_gpu,
            busy=lambda leases: self._busy(leases, fresh),
        )

    def _busy(self, leases: Sequence[Lease], fresh: Callable[[], Host]) -> dict[str, str]:
        found = dict(self.closed)
        if self.options.share:
            return found
        wanted = [unit for unit in self.units if unit.id in self.request.wanted]
        used = unleased(fresh(), wanted, leases)
        if used:
            # One that ended just now may still be listed by NVML, and is not found any more.
            time.sleep(_SETTLE)
            again = unleased(fresh(), wanted, leases)
            used = {unit: pids for unit, pids in again.items() if set(pids) & set(used.get(unit, ()))}
        for unit in wanted:
            if unit.id in used and unit.id not in found:
                found[unit.id] = f"{unit} is used by process {used[unit.id][0]}, which has no lease"
        return found

    def environment(self, units: Sequence[Unit], environ: Mapping[str, str]) -> Environment:
        """What the program gets. :raises UsageError: see compose."""
        who = self.account.variables if self.account.switch else {}
        original = self.host.read(f"/proc/{os.getpid()}/environ") or b""
        return compose({**inherited(environ, original), **who}, dict(self.options.variables), units)

    def policy(self, units: Sequence[Unit], environ: Mapping[str, str]) -> tuple[ResolvedPolicy, Mapping[str, str]]:
        """Rules and limits, and the variables that hold a limit. :raises NotSupported: one that nothing here holds."""
        resolved = launch_policy(self.host, self.inventory, units, self.options.policy)
        if self.memory is None:
            return resolved, {}
        limit = memory_limit(self.host, self.home.mount, units, self.memory, environ)
        return replace(resolved, files={**resolved.files, **limit.files}), limit.variables

    def nodes(self, units: Sequence[Unit]) -> tuple[DeviceNode, ...]:
        """Every node that the units need, those that they share too."""
        found: dict[str, DeviceNode] = {}
        for unit in units:
            whole = gpu_nodes(self.inventory, unit.pci_address, allow=True) if unit.whole else None
            for node in whole if whole is not None else mig_nodes(self.inventory, unit.id, allow=True):
                found[node.path] = node
        return tuple(found.values())

    def start(self, held: Held, environ: Mapping[str, str]) -> tuple[Start, tuple[str, ...]]:
        """The start with the leased units, and notices about variables."""
        leased = {unit for unit, _ in held.lease.units}
        units = tuple(unit for unit in self.units if unit.id in leased)
        environment = self.environment(units, environ)
        policy, variables = self.policy(units, environ)
        limited = self.gpu_max is not None and self.gpu_max.quota is not None
        start = Start(
            self.host,
            self.calls,
            self.cgroups,
            self.home,
            policy,
            units,
            tuple(unit for unit in self.units if unit.id not in leased),
            self.options.command,
            self.program,
            {**environment.values, **variables},
            self.account,
            held,
            self.nodes(units),
            self.options.private_dev,
            Keeper(self.gpu_max, self.leases, self.cgroups) if limited and self.gpu_max is not None else None,
        )
        return start, environment.notices


def prepare(host: Host, options: Options, environ: Mapping[str, str]) -> Prepared:
    """:raises NotPermitted: no privilege, or not for this user. :raises NotFound: no such GPU, user or program.

    :raises NotSupported: this host cannot hold what is asked for. :raises UsageError: it makes no sense.
    """
    require_privilege(host, options.user)
    account = find_account(options.user, environ)
    program = find_program(options.command[0], environ.get("PATH"))
    inventory = build_inventory(host)
    units = units_of(inventory)
    request = parse_request(options.gpus, units)
    document = options.policy or Document()
    gpu_max = options.gpu_max or document.gpu_max
    # The slice of the caller: one that --slice names would let everybody choose whose grants he has.
    cgroup = process.unified_cgroup(host, os.getpid()) or "/"
    bearer = Bearer(account.uid, account.name, account.groups, cgroup)
    calls = Calls()
    cgroups = Cgroups(calls, boot_id(host))
    leases = Leases(cgroups)
    grants = load_grants(host)
    living = leases.listing()[0] if grants else []
    terms = permitted(
        grants,
        bearer,
        request,
        units,
        share=options.share,
        gpu_max=gpu_max,
        held=held_by(living, account.uid),
        taken=taken_by(living, units, share=options.share),
    )
    memory = options.gpu_memory if options.gpu_memory is not None else document.gpu_memory_max
    gpu_max = terms.gpu_max
    if not terms.request.slots:
        gpu_max = memory = None  # no GPU has neither time nor memory to be measured
    if gpu_max is not None and gpu_max.quota is not None:
        _require_governor(host, terms.request, units)
    home = find_home(host, calls, options.name, options.slice)
    return Prepared(
        options,
        host,
        calls,
        cgroups,
        leases,
        inventory,
        units,
        terms.request,
        account,
        terms.most,
        gpu_max,
        memory,
        home,
        closed_units(home, units),
        program,
    )


def _require_governor(host: Host, request: Request, units: Sequence[Unit]) -> None:
    """:raises NotSupported: gpu.max cannot be held. :raises Unknown: NVML does not answer."""
    others = [unit for unit in units if unit.id in request.wanted and unit.vendor != "nvidia"]
    if others:
        raise NotSupported(f"gpu.max cannot be held on {others[0]}: GPU time is measured through NVIDIA's NVML")
    if host.nvml() is None:
        raise NotSupported("gpu.max cannot be held: GPU time is measured through NVML, which is not here")
