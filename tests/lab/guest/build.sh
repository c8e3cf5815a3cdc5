#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds one root filesystem. Runs inside its own mount and pid namespaces (tests/lab/image.py starts it), so that
# nothing it mounts is seen outside and whatever a package starts dies with it.
#
# In the environment: ROOT, RELEASE, MIRROR, BASE (a lab's root filesystem to make a virtual machine's from, or
# empty), APT_CONF (settings to use while installing, or empty). Arguments: the packages.
set -euo pipefail

if [ -n "$BASE" ]; then
    cp -a --reflink=auto "$BASE/." "$ROOT/"
else
    echo "step: debootstrap" >&2
    debootstrap --variant=minbase --include=systemd,dbus,ca-certificates "$RELEASE" "$ROOT" "$MIRROR" >&2
fi

# Only names are looked up in here, and only while packages are fetched.
cp --remove-destination /etc/resolv.conf "$ROOT/etc/resolv.conf"
cp --remove-destination /etc/hosts "$ROOT/etc/hosts"
echo "deb $MIRROR $RELEASE main" >"$ROOT/etc/apt/sources.list"
printf '%s\n' "$APT_CONF" >"$ROOT/etc/apt/apt.conf.d/00lab-build"

# A daemon that a package starts in the chroot would be the host's to clean up.
printf '#!/bin/sh\nexit 101\n' >"$ROOT/usr/sbin/policy-rc.d"
chmod 755 "$ROOT/usr/sbin/policy-rc.d"
cat >"$ROOT/etc/dpkg/dpkg.cfg.d/lab" <<'EOF'
force-unsafe-io
path-exclude=/usr/share/doc/*
path-exclude=/usr/share/man/*
path-exclude=/usr/share/locale/*
path-exclude=/usr/share/info/*
EOF

mount -t proc proc "$ROOT/proc"
mount --bind /dev "$ROOT/dev"
mount -t tmpfs tmpfs "$ROOT/run"

in_root() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        chroot "$ROOT" "$@"
}
echo "step: packages" >&2
in_root apt-get -q update >&2
in_root apt-get -q -y --no-install-recommends install "$@" >&2
in_root apt-get clean

# Timers and housekeeping would only make a lab less predictable.
mask() {
    for unit in "$@"; do
        ln -sf /dev/null "$ROOT/etc/systemd/system/$unit"
    done
}
mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service \
    fstrim.timer podman-auto-update.timer podman-auto-update.service podman-restart.service

# In namespaces, the kernel's debugging file systems and modules belong to the machine that runs the lab.
foreign=(sys-kernel-debug.mount sys-kernel-tracing.mount sys-fs-fuse-connections.mount dev-hugepages.mount
    modprobe@drm.service modprobe@efi_pstore.service modprobe@configfs.service)
if [ -z "$BASE" ]; then
    mask "${foreign[@]}"
else
    (cd "$ROOT/etc/systemd/system" && rm -f "${foreign[@]}")
    install -D -m 644 "$(dirname "$0")/job.service" "$ROOT/etc/systemd/system/gpuiso-job.service"
    in_root systemctl -q enable gpuiso-job.service
    in_root passwd -q -d root
    mkdir -p "$ROOT/etc/systemd/system/serial-getty@.service.d"
    printf '[Service]\nExecStart=\nExecStart=-/sbin/agetty -o "-p -- \\\\u" --autologin root --keep-baud %%I linux\n' \
        >"$ROOT/etc/systemd/system/serial-getty@.service.d/autologin.conf"
fi

# For rootless containers; useradd gives it subordinate ids.
if [ -z "$BASE" ]; then
    in_root useradd --create-home --uid 1000 --shell /bin/bash user
fi
mkdir -p "$ROOT/etc/docker" "$ROOT/etc/containers" "$ROOT/opt/gpuiso" "$ROOT/opt/shared" "$ROOT/opt/site"
echo '{"features": {"cdi": true}}' >"$ROOT/etc/docker/daemon.json"
# A hybrid host's cgroup2 has no pids controller, and podman's default limit would need it. Debian 12's crun raises
# RLIMIT_MEMLOCK, which needs a capability that not every machine gives its root.
{
    printf '[containers]\npids_limit = 0\n'
    if [ "$RELEASE" = bookworm ]; then
        printf '[engine]\nruntime = "runc"\n'
    fi
} >"$ROOT/etc/containers/containers.conf"
echo gpuiso-lab >"$ROOT/etc/hostname"
printf '127.0.0.1 localhost gpuiso-lab\n' >"$ROOT/etc/hosts"
: >"$ROOT/etc/resolv.conf"
: >"$ROOT/etc/machine-id"
rm -rf "$ROOT/usr/sbin/policy-rc.d" "$ROOT/etc/apt/apt.conf.d/00lab-build" "$ROOT/etc/apt/sources.list" \
    "$ROOT/etc/apt/sources.list.d" "$ROOT/var/lib/apt/lists" "$ROOT/var/log/bootstrap.log" "$ROOT/debootstrap"
# shellcheck disable=SC2016  # dpkg-query's own placeholders
in_root dpkg-query -W -f '${Package} ${Version}\n'
