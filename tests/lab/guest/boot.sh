#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Turns namespaces into a container host and becomes its systemd. tests/lab/host.py starts it through unshare(1) with
# new mount, pid, cgroup, uts, ipc and net namespaces; mounts are private.
#
# In the environment: IMAGE (a root filesystem, left as it is), SCRATCH (an empty directory to mount on), SIZE (of
# what the lab may write), CHECKOUT, SHARED (or empty) and SITE (shown read-only in /opt). Arguments: PATH:MAJOR:MINOR:MODE of nodes.
set -euo pipefail

# The starter shares the lab's root cgroup until the caller has moved it away; only then may systemd begin.
read -r _

# Whatever the lab writes is in one tmpfs of this mount namespace, so it is gone with the lab's last process.
mount -t tmpfs -o "size=$SIZE,mode=755" lab "$SCRATCH"
cd "$SCRATCH"
mkdir root upper work docker containers home
if ! mount -t overlay -o "lowerdir=$IMAGE,upperdir=$SCRATCH/upper,workdir=$SCRATCH/work" lab root; then
    mount --bind root root
    cp -a "$IMAGE/." root/
fi
cd root

# An overlay's upper directory may not be an overlay itself, and engines keep layers in these.
mkdir -p var/lib/docker var/lib/containers
mount --bind ../docker var/lib/docker
mount --bind ../containers var/lib/containers
cp -a home/. ../home/
mount --bind ../home home

show() { # DIRECTORY PLACE
    mount --bind "$1" "$2"
    mount -o remount,bind,ro "$2"
}
show "$CHECKOUT" opt/gpuiso
show "$SITE" opt/site
if [ -n "$SHARED" ]; then
    show "$SHARED" opt/shared
fi

mount -t tmpfs -o mode=755,nosuid lab dev
mount -t tmpfs -o mode=755,nosuid,nodev lab run
mount -t tmpfs -o mode=1777,nosuid,nodev lab tmp

# sysctls outside the network and the knobs of sysfs belong to the machine; net is this namespace's own.
mount -t proc -o nosuid,nodev,noexec proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount --bind proc/sys/net proc/sys/net
mount -o remount,bind,rw proc/sys/net
if [ -e proc/sysrq-trigger ]; then
    mount --bind proc/sysrq-trigger proc/sysrq-trigger
    mount -o remount,bind,ro proc/sysrq-trigger
fi
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 sys/fs/cgroup
mount -t bpf -o nosuid,nodev,noexec,mode=700 bpf sys/fs/bpf

node() { # PATH MAJOR MINOR MODE
    mkdir -p "$(dirname "$1")"
    mknod -m "$4" "$1" c "$2" "$3"
}
node dev/null 1 3 666
node dev/zero 1 5 666
node dev/full 1 7 666
node dev/random 1 8 666
node dev/urandom 1 9 666
node dev/tty 5 0 666
node dev/fuse 10 229 666
node dev/net/tun 10 200 666
for spec in "$@"; do
    IFS=: read -r path major minor mode <<<"$spec"
    node "${path#/}" "$major" "$minor" "$mode"
done
mkdir dev/pts dev/shm dev/mqueue
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs -o mode=1777,nosuid,nodev lab dev/shm
ln -s /proc/self/fd dev/fd
ln -s fd/0 dev/stdin
ln -s fd/1 dev/stdout
ln -s fd/2 dev/stderr

# The kernel lets a user namespace mount proc and sysfs only where a whole one is visible: rootless podman needs these.
mkdir -m 700 dev/.whole
mkdir dev/.whole/proc dev/.whole/sys
mount -t proc -o nosuid,nodev,noexec proc dev/.whole/proc
mount -t sysfs -o nosuid,nodev,noexec sysfs dev/.whole/sys

pivot_root . mnt
cd /
umount -l /mnt
ip link set lo up
exec env -i container=other PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd </dev/null
