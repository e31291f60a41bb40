# guest job: the Linux kernel's NVMe/TCP host against TRADDR:TRSVCID (10.0.2.2 is the loopback outside).
# From discovery to a file system and fio on the raw namespace, whose contents it destroys.
# env: TRADDR TRSVCID NQN  [NSID 1] [EXTRA nvme connect arguments] [MB 32] [FIO_MB 16] [FIO_S 5] [NFILES 100]
#      [QUEUES 2: how many it must get, the admin queue included]
NSID=${NSID:-1}; MB=${MB:-32}; D=/dev/nvme0n$NSID

discover() { nvme discover -t tcp -a "$TRADDR" -s "$TRSVCID" && grep -q "$NQN" /tmp/out; }
step discover discover
refused refuse-unknown-nqn nvme connect -t tcp -a "$TRADDR" -s "$TRSVCID" -n "$NQN-nobody"
must connect connect --ctrl-loss-tmo=30 --reconnect-delay=2 --keep-alive-tmo=30
must namespace wait_until 10 test -b "$D"

# --- what the controller says of itself ----------------------------------------------------------
id_field() { nvme "$1" "$2" | sed -n "s/^$3 *: *//p"; }
nvme id-ctrl /dev/nvme0 | grep -E '^(mn|sn|fr|mdts|cntlid|ver|oacs|oncs|vwc|sgls|subnqn|ioccsz|kas) '
nvme id-ns "$D" | grep -E '^(nsze|nlbas|flbas|lbaf .*in use|nguid)'
echo "size $(sectors "$D") sectors, block $(queue "$D" logical_block_size), max_hw $(queue "$D" max_hw_sectors_kb)k," \
    "wzeroes $(queue "$D" write_zeroes_max_bytes), discard $(queue "$D" discard_max_bytes), fua $(queue "$D" fua)," \
    "queues $(cat /sys/class/nvme/nvme0/queue_count)"
ONCS=$(($(id_field id-ctrl /dev/nvme0 oncs))); LBS=$(queue "$D" logical_block_size)
step identify test "$(id_field id-ctrl /dev/nvme0 subnqn)" = "$NQN"
# (reads, writes and polled I/O on queues of their own, when EXTRA asks for them)
step queue-count test "$(cat /sys/class/nvme/nvme0/queue_count)" -ge "${QUEUES:-2}"
step list-ns sh -c "nvme list-ns /dev/nvme0 | grep -q ':0x*$NSID\$'"
step ns-descs nvme ns-descs "$D"
step smart-log nvme smart-log /dev/nvme0
step error-log nvme error-log /dev/nvme0
step firmware-log nvme fw-log /dev/nvme0
step effects-log nvme effects-log /dev/nvme0
step changed-ns-log nvme changed-ns-list-log /dev/nvme0
for feature in 0x05 0x07 0x0a 0x0b 0x0e 0x0f; do step get-feature-$feature nvme get-feature /dev/nvme0 -f $feature; done

# --- raw data ------------------------------------------------------------------------------------
dd if=/dev/urandom of=/tmp/a bs=1M count=$MB 2>/dev/null
read_back() { dd if="$D" of=/tmp/b bs=64k count=$((MB * 16)) iflag=direct && cmp /tmp/a /tmp/b; }
step dd-write dd if=/tmp/a of="$D" bs=1M oflag=direct conv=fsync
step dd-compare read_back
step dd-one-block dd if=/tmp/a of="$D" bs="$LBS" seek=7 skip=7 count=1 oflag=direct,dsync conv=notrunc
step dd-compare-again read_back
rm -f /tmp/b
step flush nvme flush /dev/nvme0 -n "$NSID"

nvme_compare() { nvme compare "$D" -s 0 -c 7 -z $((LBS * 8)) -d "$1"; }
compare_differs() { nvme_compare /tmp/differs; [ $? != 0 ] && grep -qi 'compare' /tmp/out; }
if [ $((ONCS & 1)) != 0 ]; then
    head -c $((LBS * 8)) /tmp/a >/tmp/same; { head -c $((LBS * 8 - 1)) /tmp/a; printf '\377'; } >/tmp/differs
    cmp -s /tmp/same /tmp/differs && { head -c $((LBS * 8 - 1)) /tmp/a; printf '\0'; } >/tmp/differs
    step nvme-compare nvme_compare /tmp/same
    step nvme-compare-differs compare_differs
fi

zeroed() { [ "$(dd if="$D" bs=4k skip=$1 count=$2 iflag=direct 2>/dev/null | tr -d '\0' | wc -c)" = 0 ]; }
write_zeroes() { nvme write-zeroes "$D" -n "$NSID" -s 0 -c $((1048576 / LBS - 1)) && zeroed 0 256; }
kernel_zeroes() { blkdiscard -z -o 2097152 -l 1048576 "$D" && zeroed 512 256; }
beyond() { cmp /tmp/c /tmp/d; }
if [ $((ONCS & 8)) != 0 ]; then
    step write-zeroes write_zeroes
    # the block after the zeroed range is untouched
    dd if="$D" of=/tmp/c bs=4k skip=256 count=1 iflag=direct 2>/dev/null
    dd if=/tmp/a of=/tmp/d bs=4k skip=256 count=1 2>/dev/null
    step write-zeroes-bounds beyond
fi
step blkdiscard-zero kernel_zeroes
if [ "$(queue "$D" discard_max_bytes)" -gt 0 ]; then step discard blkdiscard -o 4194304 -l 4194304 "$D"; fi
refused read-past-end nvme read "$D" -s $(($(sectors "$D") * 512 / LBS)) -c 0 -z "$LBS" -d /tmp/past

# --- a file system -------------------------------------------------------------------------------
make_files() {
    mkdir /mnt/x/d && cp /tmp/a /mnt/x/d/a || return 1
    for i in $(seq 1 "${NFILES:-100}"); do dd if=/tmp/a of=/mnt/x/d/f$i bs=4k count=3 skip=$i 2>/dev/null || return 1; done
    sync; (cd /mnt/x/d && sha256sum * >/tmp/sums && rm f1 f2 f3) && sed -i '/  f[123]$/d' /tmp/sums
}
data_compare() { (cd /mnt/x/d && sha256sum -c -s /tmp/sums); }
mkdir -p /mnt/x
step mkfs.ext4 mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$D"
step mount mount -t ext4 -o discard "$D" /mnt/x
step write-files make_files
step umount umount /mnt/x
drop_caches
step fsck e2fsck -fn "$D"
step mount-again mount -t ext4 -o ro "$D" /mnt/x
step data-compare data_compare
step umount-again umount /mnt/x

# --- fio -----------------------------------------------------------------------------------------
step fio-verify fio_verify "$D" "${FIO_MB:-16}"
step fio-randrw fio --name=r --filename="$D" --direct=1 --ioengine=io_uring --rw=randrw --bs=4k --iodepth=32 \
    --runtime="${FIO_S:-5}" --time_based --size=64M --minimal
awk -F';' '/^3;/ {printf "  fio randrw 4k qd32: read %s IOPS, write %s IOPS\n", $8, $49}' /tmp/out
step fio-mixed-sizes fio_verify "$D" "${FIO_MB:-16}" --bsrange=4k-256k --bs_unaligned=0 --blockalign=4k

# --- a controller reset under I/O, and the end ---------------------------------------------------
reset_under_io() {
    fio_verify "$D" "${FIO_MB:-16}" >/tmp/fio.out 2>&1 & _fio=$!
    sleep 1; nvme reset /dev/nvme0 || return 1
    wait $_fio || { cat /tmp/fio.out; return 1; }
    [ "$(cat /sys/class/nvme/nvme0/state)" = live ]
}
step controller-reset reset_under_io
step disconnect disconnect
finish
