# A hot pool on zram devices of this machine: real block devices that are as fast as memory. No guest.
# Expects: REMUDA, INTEROP_DIR, and what lib/remuda.sh expects of `remuda` calls.
zram_missing() { # why it cannot be done here; fails when it can
    if [ ! -e /sys/class/zram-control/hot_add ]; then echo "no /sys/class/zram-control"
    elif [ "$(id -u)" != 0 ]; then echo "not root"
    else return 1; fi
}
zram_add() { # MIB: prints the number of a new device
    local id
    id=$(cat /sys/class/zram-control/hot_add)
    echo "$1M" >"/sys/block/zram$id/disksize"
    # (a container's /dev does not grow by itself)
    [ -b "/dev/zram$id" ] || mknod "/dev/zram$id" b $(tr : ' ' <"/sys/block/zram$id/dev")
    echo "$id"
}
zram_remove() { # ID
    echo 1 >"/sys/block/zram$1/reset"
    echo "$1" >/sys/class/zram-control/hot_remove
    [ ! -b "/dev/zram$1" ] || rm "/dev/zram$1"
}

zram_start() {
    (node_serve) </dev/null >>"$W/log" 2>&1 &
    echo $! >"$W/pid"
    disown
    wait_until 20 node_ready
}
# Our host writes and checks what it reads; in the middle the node is killed, and in the end every block is read.
zram_work() {
    local bench status=0
    zram_start
    host_bench 127.0.0.1 "$PORT" "$NQN" 6 --range 128MiB --loss-timeout 60s >"$W/bench.json" &
    bench=$!
    sleep 3
    stop_pid "$W/pid" KILL
    zram_start || status=$?
    wait $bench || status=$?
    remuda pool status hot || status=$?
    # once more with nothing but the devices: what was destaged and what is in the log alone
    stop_pid "$W/pid" KILL
    zram_start && remuda pool status hot >/dev/null || status=$?
    stop_pid "$W/pid" || status=$?
    [ $status = 0 ] || { tail -n 20 "$W/log"; cat "$W/bench.json"; }
    return $status
}
zram() (
    W=$INTEROP_DIR/zram
    PORT=$(free_port)
    PORT2=
    mkdir -p "$W"
    log=$(zram_add "$LOG_MIB")
    capacity=$(zram_add $((VOLUME_MIB * 2)))
    trap 'stop_pid "$W/pid" KILL; zram_remove "$log"; zram_remove "$capacity"' EXIT
    POOL=block LOG_PATH=/dev/zram$log CAPACITY_PATH=/dev/zram$capacity node_config >"$W/node.toml"
    zram_work
)
