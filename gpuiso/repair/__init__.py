# SPDX-License-Identifier: Apache-2.0
"""Give a running container back the GPUs that it lost: to a daemon-reload, a docker update, a change of its scope."""

from __future__ import annotations
