#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs one script in a virtual machine and writes what came of it to the third disk, as a tar: job/status, job/output
# and whatever the script has put into $RESULTS.
export HOME=/root LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/opt/gpuiso:/opt/site RESULTS=/job/results
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mkdir -p "$RESULTS"
cd /root || exit
chmod 755 /job/script
/job/script > >(tee /job/output) 2>&1 </dev/null
echo $? >/job/status
wait
tar -cf /dev/vdc -C / job/status job/output job/results
sync
