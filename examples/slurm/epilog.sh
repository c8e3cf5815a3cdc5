#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Epilog= in slurm.conf. Ends the processes of the job's user that still use GPUs, unless the user has another job here.
# Processes with a lease (gpuiso run) are no business of Slurm's, and are not in the list.
[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0
[ "$(squeue --noheader --nodelist "$SLURMD_NODENAME" --user "$SLURM_JOB_UID" --states running --format %A |
    grep -cvx "$SLURM_JOB_ID")" -eq 0 ] || exit 0
gpuiso leases --json |
    python3 -c 'import json, sys; print(*{pid for used in json.load(sys.stdin)["unleased"] for pid in used["pids"]})' |
    tr ' ' '\n' |
    while read -r pid; do
        [ -n "$pid" ] && [ "$(stat -c %u "/proc/$pid" 2>/dev/null)" = "$SLURM_JOB_UID" ] || continue
        gpuiso reclaim --pid "$pid" --until kill || echo "gpuiso: process $pid still has its GPU" >&2
    done
exit 0
