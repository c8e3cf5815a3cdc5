# SPDX-License-Identifier: Apache-2.0
"""The checks, one module a topic; gpuiso.doctor.registry names them."""
