# guest job: a snapshot of a mounted ext4 under writes, with SIGKILLs of the node around it. A clone of it and the snapshot itself are
# namespaces: both have every file that was synced before, none of a later one, and pass fsck once the journal has been replayed. The
# volume has everything, until it is rolled back; a copy that came as a stream has what the snapshot has, and then what differs.
# env: TRADDR TRSVCID NQN  [EXTRA]
D=/dev/nvme0n1
# (the kernel numbers namespaces as it finds them)
named() { # NSID: its device
    for _d in /sys/block/nvme0n*; do [ "$(cat $_d/nsid)" = "$1" ] && { echo "/dev/${_d##*/}"; return; }; done
}
must connect connect --ctrl-loss-tmo=300 --reconnect-delay=1 --keep-alive-tmo=5
must namespace wait_until 10 test -b $D

absent() { ! ls /mnt/x/f200 2>/dev/null; } # a file that came after the snapshot
present() { ls /mnt/x/f200; }
mkdir -p /mnt/x; : >/tmp/sums
step mkfs mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 $D
must mount mount -t ext4 -o errors=remount-ro $D /mnt/x

# --- made in the middle of writes; the node is killed right after, and once more with the volume being written to -----------------
write_files 1 60 >/tmp/writer.out 2>&1 & WRITER=$!
sleep 2
# (on a busy machine none is there by then)
wait_until 60 test -s /tmp/sums
cp /tmp/sums /tmp/sums.before
must snapshot host_do snapshot monday
step kill-after-snapshot host_do restart
written() { wait $WRITER || { cat /tmp/writer.out; return 1; }; }
step written written
step write-later write_files 200 210
(sleep 1; rm /mnt/x/f1; sync) &
step write-over fio_verify /mnt/x/fio 16 --fsync=32
step kill-again host_do restart
step write-after-kill write_files 211 215
grep -v ' f1$' /tmp/sums >/tmp/sums.all

# --- the clone is written to; the snapshot is not -----------------------------------------------------------------------------------
must show host_do show-snapshot monday 2 3
both() { CLONE=$(named 2) SNAPSHOT=$(named 3); test -b "$CLONE" && test -b "$SNAPSHOT"; }
must namespaces wait_until 30 both
must umount umount /mnt/x
drop_caches
must mount-clone mount -t ext4 $CLONE /mnt/x
step clone-has-what-was-synced compare_files /tmp/sums.before
step clone-has-nothing-later absent
step clone-write fio_verify /mnt/x/fio 8 --fsync=32
step umount-clone umount /mnt/x
step fsck-clone e2fsck -fn $CLONE
read_only() { [ "$(cat /sys/block/${SNAPSHOT#/dev/}/ro)" = 1 ]; }
step snapshot-is-read-only read_only
refused snapshot-takes-no-write dd if=/dev/zero of=$SNAPSHOT bs=4k count=1 oflag=direct conv=fsync
# (its journal cannot be replayed in place)
copied() { dd if=$SNAPSHOT of=/tmp/copy bs=1M count=1 && dd if=$CLONE of=/tmp/other bs=1M count=1; }
step snapshot-reads copied
must mount-snapshot mount -t ext4 -o ro,noload $SNAPSHOT /mnt/x
step snapshot-has-nothing-later absent
step umount-snapshot umount /mnt/x

# --- the volume has everything, and then what the snapshot has ---------------------------------------------------------------------
step fsck e2fsck -fn $D
must mount-again mount -t ext4 -o ro $D /mnt/x
step data-compare compare_files /tmp/sums.all
step later-is-there present
must umount-again umount /mnt/x

# --- a copy that came as a stream, and what the volume has since ------------------------------------------------------------------
copied_to() { COPY=$(named 4); test -b "$COPY"; }
mount_copy() { drop_caches; mount -t ext4 $COPY /mnt/x; }
must copy host_do copy-snapshot monday 4
must copy-namespace wait_until 30 copied_to
must mount-copy mount_copy
step copy-has-what-was-synced compare_files /tmp/sums.before
step copy-has-nothing-later absent
must umount-copy umount /mnt/x
step fsck-copy e2fsck -fn $COPY
must copy-on host_do copy-on monday tuesday 4
step kill-after-copy host_do restart
must copy-namespace-again wait_until 30 copied_to
must mount-copied-on mount_copy
step copied-on-has-everything compare_files /tmp/sums.all
step copied-on-has-later present
must umount-copied-on umount /mnt/x
step fsck-copied-on e2fsck -fn $COPY

# The disk that goes has the same name as the one that comes: they differ in their sequence number.
disk_of() { cat "/sys/block/${1##*/}/diskseq" 2>/dev/null; }
gone=$(disk_of "$(named 1)")
must roll-back host_do roll-back monday
again() {
    D=$(named 1) now=$(disk_of "$(named 1)")
    [ -n "$now" ] && [ "$now" != "$gone" ] && dd if="$D" of=/dev/null bs=4096 count=1 2>/dev/null
}
must namespace-again wait_until 30 again
drop_caches
must mount-rolled-back mount -t ext4 $D /mnt/x
step rolled-back-has-what-was-synced compare_files /tmp/sums.before
step rolled-back-has-nothing-later absent
must umount-rolled-back umount /mnt/x
step fsck-rolled-back e2fsck -fn $D

# --- the snapshot and the clone go; what the volume still shows of them stays -----------------------------------------------------
must forget host_do forget-snapshot monday 2 3 4
gone() { [ -z "$(named 2)$(named 3)$(named 4)" ]; }
step namespaces-go wait_until 30 gone
step kill-while-it-is-deleted host_do restart
drop_caches
must mount-last mount -t ext4 $D /mnt/x
step last-compare compare_files /tmp/sums.before
must umount-last umount /mnt/x
step fsck-last e2fsck -fn $D
io_errors() { dmesg | grep -E 'I/O error|Buffer I/O|EXT4-fs error' | grep -v "$(basename $SNAPSHOT)"; }
refused no-io-errors io_errors
step disconnect disconnect
finish
