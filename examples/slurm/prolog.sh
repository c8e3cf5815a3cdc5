#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prolog= in slurm.conf. Ends with 1, on which Slurm drains the node and requeues the job, if the doctor finds an error
# or a warning about this host; a driver that hangs is told within five seconds (ends with 1 as well).
[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0
if says=$(gpuiso doctor --npd); then
    exit 0
fi
echo "gpuiso: $says" >&2
exit 1
