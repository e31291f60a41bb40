# guest job: the target is killed with SIGKILL and started again, or stopped in order and another build of it started (HOW=roll),
# or started again without one of its drives (HOW=lose-drive), under I/O. The kernel's host must come back by itself and find every
# byte: the I/O in flight is replayed, nothing fails, nothing is lost.
# env: TRADDR TRSVCID NQN  [EXTRA] [KILLS 2] [HOW restart | roll | lose-drive] [SCRUB: not empty for a pool] [DOWN_S: how long it stays down, the target's own choice]
D=/dev/nvme0n1; KILLS=${KILLS:-2}; HOW=${HOW:-restart}
must connect connect --ctrl-loss-tmo=300 --reconnect-delay=1 --keep-alive-tmo=5
must namespace wait_until 10 test -b $D

reconnects() { dmesg | grep -c 'Successfully reconnected'; }
came_back() { [ "$(reconnects)" -gt "$before" ] && [ "$(cat /sys/class/nvme/nvme0/state)" = live ]; }
survive() { # COMMAND...: kill or stop the target while it runs
    before=$(reconnects)
    "$@" >/tmp/survive.out 2>&1 & _pid=$!
    sleep 2
    kill -0 $_pid || { cat /tmp/survive.out; echo "ended before the kill"; return 1; }
    host_do $HOW || return 1
    wait $_pid || { cat /tmp/survive.out; return 1; }
    # without this a test whose I/O was over in time would prove nothing
    wait_until 60 came_back
}

replaced() { [ $HOW != lose-drive ] || step "replace-drive-$i" host_do replace-drive; }

# --- raw, in flight at depth 16, checked block by block afterwards --------------------------------
for i in $(seq 1 "$KILLS"); do
    step $HOW-$i-under-fio survive fio_verify $D 64 --time_based --runtime=4 --verify_backlog=2048
    awk -F';' '/^3;/ {printf "  the longest of %d writes took %.1f s\n", $47 / 4, $56 / 1e6}' /tmp/survive.out
    replaced
done

# --- a file system that stays mounted ------------------------------------------------------------
# Each noted file must be there in the end.
mkdir -p /mnt/x; : >/tmp/sums
step mkfs mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 $D
must mount mount -t ext4 -o errors=remount-ro $D /mnt/x
step $HOW-under-ext4 survive write_files 1 60
step sync sync
must umount umount /mnt/x
drop_caches
step fsck e2fsck -fn $D
must mount-again mount -t ext4 -o ro $D /mnt/x
step data-compare compare_files /tmp/sums 60
i=last replaced
[ -z "${SCRUB:-}" ] || step scrub host_do scrub
must umount-again umount /mnt/x

# A namespace whose identifiers changed is another one to the kernel, which then drops it.
same_namespace() { ! dmesg | grep 'identifiers changed'; }
step same-namespace same_namespace
io_errors() { dmesg | grep -E 'I/O error|Buffer I/O|EXT4-fs error'; }
refused no-io-errors io_errors
step disconnect disconnect
finish
