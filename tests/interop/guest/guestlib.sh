# Functions for the jobs that run inside the guest (busybox sh). Sourced by /init before the job.

# The kernel's NVMe/TCP host sends without MSG_NOSIGNAL in the context of whoever submits: a program that does I/O at the moment a
# connection breaks gets SIGPIPE, and dies of it unless it ignores that signal.
trap '' PIPE

up() { cut -d' ' -f1 /proc/uptime; }

# --- steps: a job is a list of steps, and fails when one of them did ------------------------------
FAILED=0
step_failed() { # NAME
    echo "STEP $1: FAIL ($(up)s)"; tail -n 25 /tmp/out; echo "-- dmesg"; dmesg | tail -n 20; FAILED=1
}
# step NAME command...: run it quietly; say ok, or show what it printed and what the kernel said
step() {
    _name=$1; shift
    if "$@" >/tmp/out 2>&1; then echo "STEP $_name: ok ($(up)s)"; else step_failed "$_name"; return 1; fi
}
# must NAME command...: a step that the rest of the job cannot do without
must() { step "$@" || finish; }
# refused NAME command...: a step that is right only when the command fails
refused() {
    _name=$1; shift
    if "$@" >/tmp/out 2>&1; then echo "it was accepted" >>/tmp/out; step_failed "$_name"; else echo "STEP $_name: refused ($(up)s)"; fi
}
finish() {
    if dmesg | grep -E 'BUG:|WARNING:|Oops|hung task|blocked for more than' >/tmp/out; then step_failed kernel-log; fi
    [ $FAILED = 0 ] && { echo "RESULT PASS"; exit 0; }
    echo "RESULT FAIL"; exit 1
}

# wait_until SECONDS command...: poll until the command succeeds
wait_until() {
    _left=$(($1 * 10)); shift
    until "$@"; do
        [ $_left -gt 0 ] || { echo "timeout waiting for: $*"; return 1; }
        sleep 0.1; _left=$((_left - 1))
    done
}

# host_do VERB [ARG...]: have the machine outside do something to the target and wait until it is done.
# The request is a line on the console, the answer a line back (see guest-run.sh).
host_do() {
    # (to the console itself: inside a step, standard output is a file)
    echo "HOST-DO $*" >/dev/ttyS0
    read -r -t "${HOST_DO_S:-120}" _word _rc </dev/ttyS0 || { echo "no answer from outside to: $*"; return 1; }
    [ "$_word" = HOST-DONE ] && [ "$_rc" = 0 ] || { echo "outside failed ($_word $_rc): $*"; return 1; }
}

# insmod_dep NAME [ARG...]: load a shipped module with its dependencies
insmod_dep() {
    _want=$(echo "$1" | tr - _); _mods=$(sed -n "s/^$1: *//p" /mods/deps.list); shift
    for _m in $_mods; do
        _args=; [ "$(echo "$_m" | tr - _)" = "$_want" ] && _args=$*
        insmod "/mods/$_m.ko" $_args 2>/tmp/insmod || grep -q exists /tmp/insmod || cat /tmp/insmod
    done
}

# --- NVMe/TCP ------------------------------------------------------------------------------------
# Every job's environment: TRADDR TRSVCID NQN, EXTRA (more arguments for nvme connect)
connect() { # [ARG...]
    nvme connect -t tcp -a "$TRADDR" -s "$TRSVCID" -n "$NQN" $EXTRA "$@"
}
disconnect() { nvme disconnect -n "$NQN"; }
queue() { cat "/sys/block/${1#/dev/}/queue/$2"; }
sectors() { cat "/sys/block/${1#/dev/}/size"; }

# --- data ----------------------------------------------------------------------------------------
drop_caches() { sync; echo 3 >/proc/sys/vm/drop_caches; }

# What must come back after an unmount: contents, then names, types, modes, sizes, times and link targets.
tree_sums() { # DIR
    (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum)
}
tree_names() { # DIR
    (cd "$1" && find . ! -name lost+found | sort | while read -r _p; do
        if [ -d "$_p" ] && [ ! -L "$_p" ]; then stat -c '%n %f %Y' "$_p"; else stat -c '%n %f %s %Y %h %N' "$_p"; fi
    done)
}

# write_files FROM TO: files of these numbers on /mnt/x, written, synced and noted in /tmp/sums one after another
write_files() {
    for i in $(seq "$1" "$2"); do
        dd if=/dev/urandom of=/mnt/x/f$i bs=64k count=8 conv=fsync 2>/dev/null || return 1
        (cd /mnt/x && sha256sum f$i >>/tmp/sums); sleep 0.1
    done
}
# compare_files [SUMS [COUNT]]: each noted file is there (in /tmp/sums, if nothing is said); there are some, or so many
compare_files() {
    _sums=${1:-/tmp/sums}
    (cd /mnt/x && sha256sum -c -s "$_sums") && [ -s "$_sums" ] && [ "$(wc -l <"$_sums")" = "${2:-$(wc -l <"$_sums")}" ]
}

# fio_verify FILE MIB [ARG...]: random writes, read back and checked against the checksum in each block
fio_verify() {
    _file=$1; _mb=$2; shift 2
    fio --name=verify --filename="$_file" --direct=1 --ioengine=libaio --rw=randwrite --bs=4k --iodepth=16 \
        --size="${_mb}M" --verify=crc32c --verify_fatal=1 --output-format=terse --terse-version=3 "$@"
}

# busybox prefers its own applets, whatever the PATH; these two lack what the jobs need
dd() { /usr/bin/dd "$@"; }
blkdiscard() { /usr/sbin/blkdiscard "$@"; }
