#!/bin/bash
# kernel-initiator.sh -- the Linux kernel's NVMe/TCP host, in a guest, against a target on this machine.
#
#   kernel-initiator.sh ADDR:PORT NQN [VAR=value ...]     e.g. 127.0.0.1:4420 nqn.2026-11.io.remuda:s1
#
# The guest sees this machine's loopback as 10.0.2.2. Prints a line for each step; exits 0 only when all
# were right. The namespace's contents are destroyed.
# environment: KERNEL (6.12 | 6.1), JOB (kernel-initiator | filesystems | live | restart), and that of guest-run.sh
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
ENDPOINT=${1:?usage: kernel-initiator.sh ADDR:PORT NQN [VAR=value ...]}
NQN=${2:?usage: kernel-initiator.sh ADDR:PORT NQN [VAR=value ...]}
shift 2
ADDR=${ENDPOINT%:*}
case $ADDR in 127.0.0.1 | localhost) ADDR=10.0.2.2 ;; esac
GUEST=$("$HERE/guest-build.sh" "${KERNEL:-6.12}")
exec "$HERE/guest-run.sh" "$GUEST" "$HERE/job-${JOB:-kernel-initiator}.sh" TRADDR="$ADDR" TRSVCID="${ENDPOINT##*:}" NQN="$NQN" "$@"
