# SPDX-License-Identifier: Apache-2.0
"""``python -m gpuiso`` is the ``gpuiso`` command."""

from __future__ import annotations

from gpuiso.cli.main import main

raise SystemExit(main())
