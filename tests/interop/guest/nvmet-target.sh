#!/bin/bash
# nvmet-target.sh -- the Linux kernel's NVMe/TCP target, in a guest, as a peer on this machine's loopback.
#
#   nvmet-target.sh PORT NQN        in the foreground until its input says `stop` or it is interrupted
#
# Its namespace 1 is 512 MiB of the guest's RAM. environment: KERNEL (6.12 | 6.1)
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
PORT=${1:?usage: nvmet-target.sh PORT NQN}
NQN=${2:?usage: nvmet-target.sh PORT NQN}
GUEST=$("$HERE/guest-build.sh" "${KERNEL:-6.12}")
NETOPT=",hostfwd=tcp:127.0.0.1:$PORT-:4420" TIMEOUT=${TIMEOUT:-86400} \
    exec "$HERE/guest-run.sh" "$GUEST" "$HERE/job-nvmet-target.sh" NQN="$NQN"
