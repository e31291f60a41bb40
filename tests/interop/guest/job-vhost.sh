# guest job: a volume as a vhost-user-blk disk: what the driver sees, discard and zeroes, a file system, growth, and the
# node killed under load.
# env: SERIAL MIB BLOCK_SIZE QUEUES; KILLS 2, FIO_MB 64
D=/dev/vda; KILLS=${KILLS:-2} FIO_MB=${FIO_MB:-64}
must disk wait_until 10 test -b $D

# --- what the driver was told ---------------------------------------------------------------------
step serial [ "$(cat /sys/block/vda/serial)" = "$SERIAL" ]
step size [ "$(sectors $D)" = $((MIB * 2048)) ]
step block-size [ "$(queue $D logical_block_size)" = "$BLOCK_SIZE" ]
step queues [ "$(ls /sys/block/vda/mq | wc -l)" = "$QUEUES" ]
step discard-offered [ "$(queue $D discard_max_bytes)" -gt 0 ]
step zeroes-offered [ "$(queue $D write_zeroes_max_bytes)" -gt 0 ]
step write-back [ "$(queue $D write_cache)" = "write back" ]
# A guest that wrote through would stop flushing, and nobody remembers its choice for the next node.
through() { echo 'write through' >/sys/block/vda/cache_type; }
refused cache-fixed through

# --- data -----------------------------------------------------------------------------------------
pattern() { dd if=/dev/urandom of=/tmp/p bs=1M count=16 2>/dev/null; }
raw() {
    dd if=/tmp/p of=$D bs="$1" oflag=direct conv=fsync 2>/dev/null && drop_caches &&
        dd if=$D of=/tmp/q bs="$1" count=$((16777216 / $1)) iflag=direct 2>/dev/null && cmp /tmp/p /tmp/q
}
step pattern pattern
for bs in 4096 65536 1048576 8388608; do step raw-$bs raw $bs; done
zero() { dd if=$D bs=1M count=4 iflag=direct 2>/dev/null | cmp -n 4194304 - /dev/zero; }
step zeroes blkdiscard -z -o 0 -l 4194304 $D
step read-zeroes zero
step raw-again raw 1048576
step discard blkdiscard -o 0 -l 4194304 $D
step read-discarded zero
step fio-verify fio_verify $D "$FIO_MB"

# --- the node is killed, and another one takes its place ------------------------------------------
survive() { # COMMAND...
    "$@" >/tmp/survive.out 2>&1 & _pid=$!
    sleep 2
    kill -0 $_pid || { cat /tmp/survive.out; echo "ended before the kill"; return 1; }
    host_do restart || return 1
    wait $_pid || { cat /tmp/survive.out; return 1; }
}
for i in $(seq 1 "$KILLS"); do
    step kill-$i-under-fio survive fio_verify $D 64 --time_based --runtime=5 --verify_backlog=2048
done

mkdir -p /mnt/x; : >/tmp/sums
step mkfs mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 $D
must mount mount -t ext4 -o errors=remount-ro,discard $D /mnt/x
step kill-under-ext4 survive write_files 1 40
step remove rm /mnt/x/f1 /mnt/x/f2
grep -v -E ' f(1|2)$' /tmp/sums >/tmp/kept; mv /tmp/kept /tmp/sums

# --- it grows while it is mounted -----------------------------------------------------------------
grown() { [ "$(sectors $D)" = $(((MIB + 128) * 2048)) ]; }
must grow host_do resize $((MIB + 128))
step size-seen wait_until 20 grown
step resize-fs resize2fs $D
step sync sync
must umount umount /mnt/x
drop_caches
step fsck e2fsck -fn $D
must mount-again mount -t ext4 -o ro $D /mnt/x
step data-compare compare_files /tmp/sums 38
must umount-again umount /mnt/x
io_errors() { dmesg | grep -E 'I/O error|Buffer I/O|EXT4-fs error'; }
refused no-io-errors io_errors
finish
