# SPDX-License-Identifier: Apache-2.0
"""OCI runtime configs (opencontainers/runtime-spec, config.md): reading, editing, writing."""
