# Persistent memory that QEMU emulates: two NVDIMMs and virtio-pmem, whose contents outlive the guest.
# Expects: REMUDA, POWER_LOSS (the release builds of the binary and of the example), INTEROP_DIR.
pmem_guest() { # GUEST STAGE [VAR=value ...]
    local guest=$1 stage=$2 w=$INTEROP_DIR/pmem
    shift 2
    SHIP="$REMUDA $POWER_LOSS /usr/bin/ndctl" TIMEOUT=${JOB_TIMEOUT:-900} LOG=$w/console \
        "$GUEST_SH/guest-run.sh" "$guest" "$GUEST_SH/job-pmem.sh" STAGE="$stage" "$@" -- \
        -machine nvdimm=on -m slots=4,maxmem=4G \
        -object "memory-backend-file,id=m0,share=on,mem-path=$w/nvdimm0,size=258M" -device nvdimm,id=nv0,memdev=m0,label-size=2M \
        -object "memory-backend-file,id=m1,share=on,mem-path=$w/nvdimm1,size=258M" -device nvdimm,id=nv1,memdev=m1,label-size=2M \
        -object "memory-backend-file,id=m2,share=on,mem-path=$w/virtio,size=256M" -device virtio-pmem-pci,memdev=m2,id=vp \
        -drive "file=$w/capacity,if=none,id=d0,format=raw" -device virtio-blk-pci,drive=d0 \
        -drive "file=$w/notes,if=none,id=d1,format=raw" -device virtio-blk-pci,drive=d1
}
pmem_until_crash() { # KERNEL [VAR=value ...]: all that is asked of it, up to a crash of the machine under writers
    local w=$INTEROP_DIR/pmem
    PMEM_GUEST=$("$GUEST_SH/guest-build.sh" "$1")
    shift
    rm -rf "$w"
    mkdir "$w"
    truncate -s 258M "$w/nvdimm0" "$w/nvdimm1"
    truncate -s 256M "$w/virtio"
    truncate -s 1G "$w/capacity"
    truncate -s 1M "$w/notes"
    # (the guest never finishes its job)
    pmem_guest "$PMEM_GUEST" 1 "$@" || grep -q CRASH-NOW "$w/console"
}
pmem() { # KERNEL
    local log
    for log in file device; do
        pmem_until_crash "$1" LOG_ON=$log && pmem_guest "$PMEM_GUEST" 2 LOG_ON=$log || return 1
    done
}
# The same with a log in the page cache, which dies with the machine: the pool must miss it, or its readers the blocks.
pmem_mutation() { # KERNEL
    pmem_until_crash "$1" LOG_DAX= || return 1
    pmem_guest "$PMEM_GUEST" 2 LOG_DAX= || grep -q 'STEP pool-opens: FAIL\|STEP verify-after-crash: FAIL' "$INTEROP_DIR/pmem/console" ||
        { echo "interop: the guest failed for another reason"; return 1; }
    ! grep -q 'RESULT PASS' "$INTEROP_DIR/pmem/console" ||
        { echo "interop: nothing was lost although the log was in the page cache"; return 1; }
}
