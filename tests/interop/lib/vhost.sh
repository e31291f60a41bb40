# A volume of a hot pool as the disk of a virtual machine. No network: QEMU and the node share memory and a socket.
# Expects: REMUDA, INTEROP_DIR, and what lib/remuda.sh expects of `remuda` calls.
VHOST_MIB=256

vhost_config() { # BLOCK_SIZE
    cat <<CONFIG
[node]
state_dir = "$W/state"
rpc_socket = "$W/rpc.sock"
metrics_listen = "off"
reactors = 2
CONFIG
    file_device capacity $((VHOST_MIB * 3)) 4096
    echo "[pool.hot]"
    echo "log = { pmem = \"$W/hot.log\", size = \"${LOG_MIB}MiB\", volatile = true }"
    echo 'capacity = "capacity"'
    v0_on 'pool = "hot"' "size = \"${VHOST_MIB}MiB\"" "block_size = $1"
    printf '%s\n' '[[vhost]]' 'name = "vm0"' 'volume = "v0"' "socket = \"$W/vm0.sock\"" 'queues = 4'
}
vhost_start() {
    (node_serve) </dev/null >>"$W/log" 2>&1 &
    echo $! >"$W/pid"
    disown
    wait_until 20 node_ready
}
# What a job in the guest has done to the node.
vhost_do() { # VERB [ARG]
    case $1 in
    # (a killed node needs a moment to let go of its state directory, on a busy machine a longer one)
    restart) stop_pid "$W/pid" KILL; sleep "${DOWN_S:-1}"; vhost_start || vhost_start ;;
    resize) remuda volume resize v0 "$2MiB" >/dev/null ;;
    *) die "no verb $1 for a vhost job" ;;
    esac
}
# A guest with the volume as its disk.
vhost_guest() { # GUESTDIR JOB [VAR=value ...] -- [more qemu arguments]
    local guest=$1 job=$2; shift 2
    HOSTCMD="$INTEROP/lib/vhost-do" LOG=$INTEROP_DIR/console \
        "$GUEST_SH/guest-run.sh" "$guest" "$GUEST_SH/$job" SERIAL="$serial" "$@" \
        -object memory-backend-memfd,id=mem,size=1024M,share=on -machine memory-backend=mem \
        -chardev socket,id=disk0,path="$W/vm0.sock",reconnect=1 \
        -device vhost-user-blk-pci,chardev=disk0,num-queues=4,queue-size=128,bootindex=1
}
vhost() ( # KERNEL BLOCK_SIZE [VAR=value ...]
    local kernel=$1 block_size=$2 guest status=0; shift 2
    guest=$("$GUEST_SH/guest-build.sh" "$kernel")
    W=$INTEROP_DIR/vhost
    rm -rf "$W"; mkdir -p "$W"
    trap 'stop_pid "$W/pid" KILL' EXIT
    vhost_config "$block_size" >"$W/node.toml"
    vhost_start
    serial=$(remuda --json vhost show vm0 | sed -n 's/.*"serial": *"\([^"]*\)".*/\1/p')
    export W REMUDA INTEROP_DIR
    vhost_guest "$guest" job-vhost.sh MIB=$VHOST_MIB BLOCK_SIZE="$block_size" QUEUES=1 "$@" -- || status=$?
    remuda vhost show vm0 || status=$?
    stop_pid "$W/pid" || status=$?
    [ $status = 0 ] || tail -n 20 "$W/log"
    return $status
)
# A guest is installed on a volume, then starts from it twice; it and the node are killed in between.
vhost_boot() ( # KERNEL
    local kernel=$1 guest status=0 boot
    guest=$("$GUEST_SH/guest-build.sh" "$kernel")
    W=$INTEROP_DIR/vhost-boot
    rm -rf "$W"; mkdir -p "$W"
    trap 'stop_pid "$W/pid" KILL' EXIT
    # (SeaBIOS reads disks of 512-byte blocks only)
    vhost_config 512 >"$W/node.toml"
    vhost_start
    serial=$(remuda --json vhost show vm0 | sed -n 's/.*"serial": *"\([^"]*\)".*/\1/p')
    export W REMUDA INTEROP_DIR
    "$GUEST_SH/boot-image.sh" "$guest" "$W/image" "$VHOST_MIB"
    vhost_guest "$guest" job-vhost-install.sh -- \
        -drive "if=none,id=image,format=raw,readonly=on,file=$W/image" -device virtio-blk-pci,drive=image,serial=image || return
    for boot in 1 2; do
        FROM_DISK=1 vhost_guest "$guest" job-vhost-boot.sh BOOT=$boot -- || { status=$?; break; }
        if [ $boot = 1 ]; then vhost_do restart; fi
    done
    remuda vhost show vm0 || status=$?
    stop_pid "$W/pid" || status=$?
    [ $status = 0 ] || tail -n 20 "$W/log"
    return $status
)
