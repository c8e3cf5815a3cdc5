# SPDX-License-Identifier: Apache-2.0
"""GPU access that is lost behind a container's back, and how it comes back without a restart."""

from __future__ import annotations

from tests.lab.access import open_in_container
from tests.lab.faults import lose_gpu_by_daemon_reload, lose_gpu_by_set_property, repair_through_systemd
from tests.lab.host import Lab
from tests.tiers import requires

pytestmark = requires("lab")


def test_daemon_reload_takes_the_gpu_on_debian_12(lab12: Lab) -> None:
    lost = lose_gpu_by_daemon_reload(lab12)
    assert (lost.before, lost.hooked, lost.after) == ("EPERM", "ENXIO", "EPERM")


def test_daemon_reload_leaves_the_gpu_on_debian_13(lab13: Lab) -> None:
    kept = lose_gpu_by_daemon_reload(lab13)
    assert (kept.before, kept.hooked, kept.after) == ("EPERM", "ENXIO", "ENXIO")


def test_set_property_takes_the_gpu(lab12: Lab, lab13: Lab) -> None:
    for lab in (lab12, lab13):
        lost = lose_gpu_by_set_property(lab)
        assert (lost.before, lost.hooked, lost.after) == ("EPERM", "ENXIO", "EPERM")


def test_a_repair_through_systemd_reaches_the_running_container_and_lasts(lab12: Lab, lab13: Lab) -> None:
    for lab in (lab12, lab13):
        lost = lose_gpu_by_set_property(lab)
        assert repair_through_systemd(lab, lost) == "ENXIO"
        lab.run(["systemctl", "daemon-reload"])
        assert open_in_container(lab, lost.container, lost.node) == "ENXIO"
