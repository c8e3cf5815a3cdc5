# SPDX-License-Identifier: Apache-2.0
"""Who may have which GPUs: the files of /etc/gpuiso/policy.d, and what they come to for a user or a container."""

from __future__ import annotations
