# SPDX-License-Identifier: Apache-2.0
"""A real container host for tests: systemd, D-Bus, Docker, podman, runc and crun inside namespaces.

``python -m tests.lab shell`` gives a shell in one; docs/lab.md explains it.
"""

from __future__ import annotations
