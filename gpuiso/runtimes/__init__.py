# SPDX-License-Identifier: Apache-2.0
"""The configuration of container engines and of NVIDIA's container toolkit: what is known of every key, and
changes that leave everything else as it is.
"""
