# SPDX-License-Identifier: Apache-2.0
"""GPU inventories and visibility: pure functions of a host."""
