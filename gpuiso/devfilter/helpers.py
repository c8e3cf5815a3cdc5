# SPDX-License-Identifier: Apache-2.0
"""Helper functions by the numbers that programs call them with before they are loaded.

From ___BPF_FUNC_MAPPER in include/uapi/linux/bpf.h: those a cgroup device program may call.
"""

from __future__ import annotations

__all__ = ["HELPER_NAMES"]

HELPER_NAMES: dict[int, str] = {
    1: "bpf_map_lookup_elem",
    2: "bpf_map_update_elem",
    3: "bpf_map_delete_elem",
    5: "bpf_ktime_get_ns",
    6: "bpf_trace_printk",
    7: "bpf_get_prandom_u32",
    8: "bpf_get_smp_processor_id",
    12: "bpf_tail_call",
    14: "bpf_get_current_pid_tgid",
    15: "bpf_get_current_uid_gid",
    16: "bpf_get_current_comm",
    25: "bpf_perf_event_output",
    35: "bpf_get_current_task",
    80: "bpf_get_current_cgroup_id",
    81: "bpf_get_local_storage",
    123: "bpf_get_current_ancestor_cgroup_id",
    125: "bpf_ktime_get_boot_ns",
    130: "bpf_ringbuf_output",
    131: "bpf_ringbuf_reserve",
    132: "bpf_ringbuf_submit",
    133: "bpf_ringbuf_discard",
    186: "bpf_get_retval",
    187: "bpf_set_retval",
}
