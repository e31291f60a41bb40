# Drives with zones in the guest, under a node there: QEMU's NVMe drive, and the kernel's shingled disk.
# Expects: REMUDA, CONFORM (the release builds of the binary and of the example; without the latter that part is left out), INTEROP_DIR.
zoned_drive() { # KERNEL [VAR=value ...]
    local guest w=$INTEROP_DIR/zoned-drive conform=
    guest=$("$GUEST_SH/guest-build.sh" "$1")
    shift
    rm -rf "$w"
    mkdir "$w"
    truncate -s 64M "$w/log"
    truncate -s 32M "$w/head"
    truncate -s 400M "$w/zns"
    [ ! -x "$CONFORM" ] || conform=$CONFORM
    SHIP="$REMUDA /usr/sbin/blkzone $conform" TIMEOUT=${JOB_TIMEOUT:-900} MEM=1536 \
        "$GUEST_SH/guest-run.sh" "$guest" "$GUEST_SH/job-zoned-drive.sh" "$@" -- \
        -drive "file=$w/log,if=none,id=d0,format=raw" -device virtio-blk-pci,drive=d0 \
        -drive "file=$w/head,if=none,id=d1,format=raw" -device virtio-blk-pci,drive=d1 \
        -drive "file=$w/zns,if=none,id=d2,format=raw" -device nvme,id=n0,serial=zns \
        -device nvme-ns,drive=d2,bus=n0,zoned=on,zoned.zone_size=4M,zoned.zone_capacity=3M,zoned.max_open=8,zoned.max_active=12,logical_block_size=4096,physical_block_size=4096 |
        tee "$INTEROP_DIR/console"
}
