# guest job: two hops. The namespace is a volume of one node whose device is a namespace of another node: the kernel's host over our
# target, our host and our target. Either node is killed under I/O; nothing fails and every byte is there.
# env: TRADDR TRSVCID NQN  [EXTRA] [MB 32] [FIO_S 5] [KILLS 1]
D=/dev/nvme0n1; MB=${MB:-32}; FIO_S=${FIO_S:-5}
must connect connect --ctrl-loss-tmo=300 --reconnect-delay=1 --keep-alive-tmo=5
must namespace wait_until 10 test -b $D

# --- what passes through --------------------------------------------------------------------------
dd if=/dev/urandom of=/tmp/a bs=1M count="$MB" 2>/dev/null
read_back() { dd if="$D" of=/tmp/b bs=64k count=$((MB * 16)) iflag=direct && cmp /tmp/a /tmp/b; }
zeroed() { [ "$(dd if="$D" bs=4k skip="$1" count="$2" iflag=direct 2>/dev/null | tr -d '\0' | wc -c)" = 0 ]; }
zeroes() { blkdiscard -z -o 1048576 -l 1048576 $D && zeroed 256 256; }
discards() { blkdiscard -o 4194304 -l 1048576 $D && zeroed 1024 256; }
step dd-write dd if=/tmp/a of="$D" bs=1M oflag=direct conv=fsync
step dd-compare read_back
step write-zeroes zeroes
step discard discards
step fio-verify fio_verify $D "$MB"
step fio-mixed-sizes fio_verify $D "$MB" --bsrange=4k-256k --blockalign=4k

# --- either node is killed ------------------------------------------------------------------------
reconnects() { dmesg | grep -c 'Successfully reconnected'; }
under_io() { # VERB: that happens under fio
    fio_verify $D 64 --time_based --runtime="$FIO_S" --verify_backlog=2048 >/tmp/fio.out 2>&1 & _pid=$!
    sleep 2
    kill -0 $_pid || { cat /tmp/fio.out; echo "ended before the kill"; return 1; }
    host_do "$1" || return 1
    wait $_pid || { cat /tmp/fio.out; return 1; }
}
reconnected() { [ "$(reconnects)" -gt "$before" ] && [ "$(cat /sys/class/nvme/nvme0/state)" = live ]; }
not_noticed() { [ "$(reconnects)" = "$before" ]; }
for i in $(seq 1 "${KILLS:-1}"); do
    before=$(reconnects)
    step kill-$i-below under_io restart-below
    step connection-$i-stays not_noticed
    step kill-$i-gateway under_io restart
    step reconnect-$i wait_until 60 reconnected
    before=$(reconnects)
    step roll-$i-gateway under_io roll
    step reconnect-$i-again wait_until 60 reconnected
done

# --- a file system over both ----------------------------------------------------------------------
mkdir -p /mnt/x; : >/tmp/sums
step mkfs mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 $D
must mount mount -t ext4 -o errors=remount-ro $D /mnt/x
write_files 1 40 >/tmp/writer.out 2>&1 & WRITER=$!
sleep 2
step kill-below-under-ext4 host_do restart-below
written() { wait $WRITER || { cat /tmp/writer.out; return 1; }; }
step written written
must umount umount /mnt/x
drop_caches
step fsck e2fsck -fn $D
must mount-again mount -t ext4 -o ro $D /mnt/x
step data-compare compare_files /tmp/sums 40
must umount-again umount /mnt/x
same_namespace() { ! dmesg | grep 'identifiers changed'; }
step same-namespace same_namespace
io_errors() { dmesg | grep -E 'I/O error|Buffer I/O|EXT4-fs error'; }
refused no-io-errors io_errors
step disconnect disconnect
finish
