#!/bin/bash
# guest-run.sh -- boot a guest made by guest-build.sh and run one shell job in it.
#
#   guest-run.sh GUESTDIR JOB.sh [VAR=value ...] [-- more qemu arguments]
#
# The job and its VARs are appended to the initramfs. A console line `HOST-DO verb args` from the job
# runs `$HOSTCMD verb args` out here, and its exit status goes back as `HOST-DONE status` (host_do in
# guestlib.sh): that is how a job has the target killed, grown or given a namespace in the middle.
#
# Exit status: the job's; 124 when it ran out of time; 125 when the guest never finished it.
# environment (all optional):
#   TIMEOUT   seconds (300)             HOSTCMD  command for HOST-DO lines
#   MEM       MiB (1024)                INPUT    FIFO for the guest's console input, kept by the caller
#   LOG       copy of the console       PIDFILE  where qemu writes its process id
#   NETOPT    more for the user network, such as ,hostfwd=...
#   SHIP      host programs that only this job needs, to be in the guest's /bin
#   FROM_DISK the firmware boots what is on the disks of the qemu arguments (see boot-image.sh); the job is on one more
#
# One emulated processor of an old model, in a thread of its own and able to have another beside it: only for such guests does QEMU
# 7.2 translate memory barriers (later versions always do). Without them a virtio queue whose notification comes just as the device
# looks stands still for good: eight reads of a guest's disk hung so, once in some fifty runs. With `-cpu max` and several
# processors it has been seen to corrupt a guest kernel's flags (a double fault, once in some sixty boots).
set -euo pipefail
GUEST=${1:?usage: guest-run.sh GUESTDIR JOB.sh [VAR=value ...] [-- qemu arguments]}
JOB=${2:?job}
shift 2
. "$(dirname "${BASH_SOURCE[0]}")/programs.sh"

T=$(mktemp -d "${TMPDIR:-/tmp}/remuda-guest.XXXXXX")
QEMU=
cleanup() {
    if [ -n "$QEMU" ]; then kill "$QEMU" 2>/dev/null || true; wait "$QEMU" 2>/dev/null || true; fi
    rm -rf "$T"
}
trap cleanup EXIT
trap 'exit 143' TERM INT

mkdir "$T/r"
cp "$JOB" "$T/r/job.sh"; : >"$T/r/job.env"
while [ $# -gt 0 ]; do
    case $1 in
    --) shift; break ;;
    *=*) printf "export %s='%s'\n" "${1%%=*}" "${1#*=}" >>"$T/r/job.env"; shift ;;
    *) echo "guest-run: bad argument $1" >&2; exit 2 ;;
    esac
done
for program in ${SHIP:-}; do copy_program "$T/r" "$program" "bin/$(basename "$program")"; done
(cd "$T/r" && find . | cpio --quiet -o -H newc) >"$T/job.cpio"
if [ -n "${FROM_DISK:-}" ]; then
    # (without a display SeaBIOS and the boot loader talk to the console)
    boot=(-machine graphics=off -drive "if=none,id=job,format=raw,readonly=on,file=$T/job.cpio")
    set -- "$@" -device virtio-blk-pci,drive=job,serial=job
else
    cat "$GUEST/base.cpio" "$T/job.cpio" >"$T/initrd"
    boot=(-kernel "$GUEST/vmlinuz" -initrd "$T/initrd"
        -append "console=ttyS0 quiet panic=-1 oops=panic no_timer_check mitigations=off random.trust_cpu=on")
fi

# Both ends of the FIFOs are held open here, so that neither side blocks in open() or reads an end of file.
if [ -n "${INPUT:-}" ]; then exec 7<>"$INPUT"; else mkfifo "$T/in"; exec 7<>"$T/in"; fi
mkfifo "$T/out"

start=$(date +%s)
timeout -k 5 "${TIMEOUT:-300}" qemu-system-x86_64 \
    -accel tcg,thread=multi -machine q35 -cpu Nehalem -smp 1,maxcpus=2 -m "${MEM:-1024}" \
    -nodefaults -no-user-config -no-reboot -display none -serial stdio ${PIDFILE:+-pidfile "$PIDFILE"} \
    "${boot[@]}" \
    -netdev user,id=n0"${NETOPT:-}" -device virtio-net-pci,netdev=n0,romfile= \
    "$@" <&7 >"$T/out" 2>&1 &
QEMU=$!

job_rc=
while IFS= read -r line; do
    line=${line%$'\r'}
    printf '%s\n' "$line"
    [ -z "${LOG:-}" ] || printf '%s\n' "$line" >>"$LOG"
    case $line in
    *HOST-DO\ *)
        rc=0
        # shellcheck disable=SC2086  # the words of the line are the arguments
        ${HOSTCMD:-false} ${line#*HOST-DO } </dev/null 7>&- || rc=$?
        echo "HOST-DONE $rc" >&7
        ;;
    *JOB-RC=*) job_rc=${line#*JOB-RC=}; job_rc=${job_rc%% *} ;;
    esac
done <"$T/out"
# (bash would report a kill, which is the caller's doing)
rc=0; wait "$QEMU" 2>/dev/null || rc=$?
QEMU=
echo "guest: $(($(date +%s) - start)) s"
if [ "$rc" = 124 ]; then echo "guest: out of time (${TIMEOUT:-300} s)" >&2; exit 124; fi
exit "${job_rc:-125}"
