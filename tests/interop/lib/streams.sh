# A drive with placement handles (FDP) in the guest, under a node there. Wants QEMU 8 or later, and a kernel of 6.16 or later.
# Expects: REMUDA, INTEROP_DIR.
streams_missing() {
    qemu-system-x86_64 -device nvme-subsys,help 2>/dev/null | grep -q 'fdp=' || echo "this QEMU has no drives with placement handles (version 8 has)"
}
streams() { # KERNEL
    local guest w=$INTEROP_DIR/streams
    guest=$("$GUEST_SH/guest-build.sh" "$1")
    rm -rf "$w"
    mkdir "$w"
    truncate -s 64M "$w/log"
    truncate -s 288M "$w/fdp"
    SHIP=$REMUDA TIMEOUT=${JOB_TIMEOUT:-900} "$GUEST_SH/guest-run.sh" "$guest" "$GUEST_SH/job-streams.sh" -- \
        -drive "file=$w/log,if=none,id=d0,format=raw" -device virtio-blk-pci,drive=d0 \
        -drive "file=$w/fdp,if=none,id=d1,format=raw" \
        -device nvme-subsys,id=s0,fdp=on,fdp.runs=16M,fdp.nrg=1,fdp.nruh=8 -device nvme,id=n0,serial=fdp,subsys=s0 \
        -device 'nvme-ns,drive=d1,bus=n0,fdp.ruhs=0-7,logical_block_size=4096,physical_block_size=4096' |
        tee "$INTEROP_DIR/console"
}
