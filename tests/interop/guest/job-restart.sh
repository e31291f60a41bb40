# guest job: the target is killed with SIGKILL and started again, or stopped in order and another build of it started (HOW=roll),
# or started again without one of its drives (HOW=lose-drive), under I/O. The kernel's host must come back by itself and find every
# byte: the I/O in flight is replayed, nothing fails, nothing is lost. Then, after SIGKILLs, the host gives its connection up under
# mounted file systems: what is on the volume is what a crash of both leaves, and the next mount replays the journal or the log.
# env: TRADDR TRSVCID NQN  [EXTRA] [KILLS 2] [HOW restart | roll | lose-drive] [SCRUB: not empty for a pool] [DOWN_S: how long it stays down, the target's own choice]
#      [FILESYSTEMS "ext4 xfs"] [CRASHES "ext4 xfs": those under which the host is lost as well; none unless HOW is restart] [FILES 40]
D=/dev/nvme0n1; KILLS=${KILLS:-2}; HOW=${HOW:-restart}; FILES=${FILES:-40}
[ $HOW = restart ] || CRASHES=
insmod_dep xfs
attach() { connect --ctrl-loss-tmo=300 --reconnect-delay=1 --keep-alive-tmo=5; }
must connect attach
must namespace wait_until 10 test -b $D
# Of a volume in a pool, 64 KiB at once; kernels before 6.11 do not say, and 6.12 says so of the path alone.
atomic_bytes=/sys/block/nvme0c0n1/queue/atomic_write_unit_max_bytes
atomic_as_told() { cat $atomic_bytes && [ "$(cat $atomic_bytes)" = 65536 ]; }
[ -z "${SCRUB:-}" ] || [ ! -e $atomic_bytes ] || step atomic-writes atomic_as_told

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

# --- file systems that stay mounted --------------------------------------------------------------
# Each noted file must be there in the end.
make_ext4() { mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 $D; }
make_xfs() { mkfs.xfs -q -f $D; }
mount_ext4() { mount -t ext4 -o errors=remount-ro $D /mnt/x; }
mount_xfs() { mount -t xfs $D /mnt/x; }
check_ext4() { e2fsck -fn $D; }
check_xfs() { xfs_repair -n $D; }
fio_in_fs() { fio_verify /mnt/x/fio 8 --fsync=32 --time_based --runtime=4 --verify_backlog=512; }
load() { # synced files, one after another, beside random writes that are verified
    write_files 1 "$FILES" & _writer=$!
    fio_in_fs || { kill $_writer; return 1; }
    wait $_writer
}
mkdir -p /mnt/x
for fs in ${FILESYSTEMS-ext4 xfs}; do
    : >/tmp/sums
    step $fs-mkfs make_$fs
    must $fs-mount mount_$fs
    step $HOW-under-$fs survive load
    (cd /mnt/x && sha256sum fio >>/tmp/sums)
    step $fs-sync sync
    must $fs-umount umount /mnt/x
    drop_caches
    step $fs-check check_$fs
    must $fs-mount-again mount -t $fs -o ro $D /mnt/x
    step $fs-compare compare_files /tmp/sums $((FILES + 1))
    i=$fs replaced
    must $fs-umount-again umount /mnt/x
done

# A namespace whose identifiers changed is another one to the kernel, which then drops it.
same_namespace() { ! dmesg | grep 'identifiers changed'; }
step same-namespace same_namespace
io_errors() { dmesg | grep -E 'I/O error|Buffer I/O|EXT4-fs error|XFS .*(error|[Cc]orrupt|[Ss]hut)'; }
refused no-io-errors io_errors

# --- the host is lost too, with the file system mounted --------------------------------------------
churn() { # names that come, change and go, and nothing of it synced, until that fails
    _n=0
    while mkdir /mnt/x/c$_n && echo $_n >/mnt/x/c$_n/a && mv /mnt/x/c$_n/a /mnt/x/c$_n/b; do
        [ $_n -lt 20 ] || rm -r /mnt/x/c$((_n - 20)) || return
        _n=$((_n + 1))
    done
}
lose_host() { # the node is killed under writers, and the host does not wait for another
    write_files 1 2000 2>/dev/null & _writer=$!
    churn 2>/dev/null & _churn=$!
    wait_until 60 noted 6
    kill -0 $_writer && kill -0 $_churn || { echo "ended before the kill"; return 1; }
    host_do kill && disconnect || return 1
    ! wait $_writer || { echo "every file was written"; return 1; }
    wait $_churn
    umount /mnt/x
}
noted() { [ "$(wc -l </tmp/sums)" -ge "$1" ]; }
# (what held the former device may go later than it does, and the next one then has another number)
subsystem() { for _at in /sys/class/nvme-subsystem/*; do [ "$(cat $_at/subsysnqn 2>/dev/null)" != "$NQN" ] || echo "$_at"; done; }
detached() { [ -z "$(subsystem)" ] && [ ! -e $D ]; }
disk_is_there() { D=/dev/$(ls "$(subsystem)" | grep -E '^nvme[0-9]+n1$') && [ -b "$D" ]; }
attach_again() { wait_until 60 detached && host_do restart && attach && wait_until 60 disk_is_there; }
replayed() { dmesg | grep -E "EXT4-fs \(${D##*/}\): recovery complete|XFS \(${D##*/}\): Ending recovery" | grep -i "$1"; }
# (what the kernel says of the device that went would come in the middle of lines that are meant for the machine outside; dmesg has it)
dmesg -n 1
for fs in ${CRASHES-ext4 xfs}; do
    : >/tmp/sums
    step $fs-mkfs-to-crash make_$fs
    must $fs-mount-to-crash mount_$fs
    must $fs-crash lose_host
    must $fs-connect-after-crash attach_again
    must $fs-mount-after-crash mount_$fs
    step $fs-replayed replayed $fs
    step $fs-compare-after-crash compare_files /tmp/sums
    echo "  $(wc -l </tmp/sums) files had been synced"
    step $fs-goes-on write_files 2001 2003
    must $fs-umount-after-crash umount /mnt/x
    step $fs-check-after-crash check_$fs
done
[ -z "${SCRUB:-}" ] || step scrub host_do scrub
step disconnect disconnect
finish
