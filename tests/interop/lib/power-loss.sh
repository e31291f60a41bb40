# Power losses: record in a guest what becomes durable when, then try every point of it out here.
# Expects: REMUDA, POWER_LOSS (the release builds of the binary and of the example), INTEROP_DIR.
POWER_LOG_MIB=64
POWER_CAPACITY_MIB=256

# record_writes KERNEL SEED STEPS [VAR=value ...]: leaves $INTEROP_DIR/recording; SHAPE is that of the pool, hot by default
record_writes() {
    local kernel=$1 seed=$2 steps=$3 guest
    shift 3
    guest=$("$GUEST_SH/guest-build.sh" "$kernel")
    rm -f "$INTEROP_DIR/recording"
    truncate -s 4G "$INTEROP_DIR/recording"
    SHIP="$REMUDA $POWER_LOSS /usr/sbin/dmsetup" TIMEOUT=${JOB_TIMEOUT:-900} \
        "$GUEST_SH/guest-run.sh" "$guest" "$GUEST_SH/job-power-loss.sh" \
        LOG_MIB=$POWER_LOG_MIB CAPACITY_MIB=$POWER_CAPACITY_MIB SEED="$seed" STEPS="$steps" "$@" \
        -- -drive "file=$INTEROP_DIR/recording,if=none,id=d0,format=raw,cache=unsafe" -device virtio-blk-pci,drive=d0
}
replay_writes() { # SEED POINTS
    "$POWER_LOSS" replay "$INTEROP_DIR/recording" "$1" $POWER_LOG_MIB $POWER_CAPACITY_MIB "$2"
}
power_loss() { # KERNEL STEPS POINTS [VAR=value ...]
    record_writes "$1" 1 "$2" "${@:4}" && replay_writes 1 "$3"
}
# The same with a device that does nothing when told to flush: acknowledged writes must be seen to be lost.
power_loss_mutation() { # KERNEL STEPS POINTS log|capacity [VAR=value ...]
    local status=0
    record_writes "$1" 1 "$2" LIES="$4" "${@:5}" || return 1
    replay_writes 1 "$3" || status=$?
    [ $status = 3 ] || { echo "interop: nothing was lost although the $4 device ignores flushes (status $status)"; return 1; }
}
# A shaped pool: bands behind a log that holds the index as well.
power_loss_shaped() { # KERNEL STEPS POINTS
    local POWER_LOG_MIB=96 POWER_CAPACITY_MIB=384
    power_loss "$@" SHAPE=shaped
}
power_loss_mutation_shaped() { # KERNEL STEPS POINTS log|capacity
    local POWER_LOG_MIB=96 POWER_CAPACITY_MIB=384
    power_loss_mutation "$@" SHAPE=shaped
}
