# Everything that the interop suite says to the `remuda` binary. When the CLI changes, this file does.
# Expects: REMUDA (the binary), W (a directory of ours), PORT, PORT2 (empty without a second portal).
NQN=nqn.2026-11.io.remuda:s1
VOLUME_MIB=512
# (the least there is: destaging, checkpoints and the reuse of segments happen while a job runs)
LOG_MIB=64
# (of four drives one is parity; of flash there is less than is read)
DRIVE_MIB=256 FLASH_MIB=128

remuda() { "$REMUDA" --socket "$W/rpc.sock" "$@"; }

# What was acknowledged must survive a SIGKILL of the node. POOL says what holds the volumes: nothing (file devices of their
# own), `mapped` or `block` (a hot pool with that kind of log; a mapped log in a file is volatile, and the page cache does
# outlive the node), `shaped` (a shaped pool, a file for its log), `parity` (the same over four drives, one of which may go),
# `zone-bands` (the same on a zoned drive), `warm` (a hot pool on two disks, with flash before them), `zoned` (no pool: the file device,
# in zones), `gateway` (a namespace of another node, which has the file device; PORT_BELOW is its port), or `paths` (namespace 1 of
# FAR_NQN, over the ports of this machine in FAR_PORTS). LOG_PATH and CAPACITY_PATH put a pool with a block log on devices that are
# there. With TLS in the environment the second portal is one for TLS.
node_config() {
    local listen="'127.0.0.1:$PORT'" encrypted=
    if [ -n "${TLS:-}" ]; then
        encrypted="listen_tls = ['127.0.0.1:$PORT2']"
    elif [ -n "$PORT2" ]; then
        listen+=", '127.0.0.1:$PORT2'"
    fi
    cat <<CONFIG
[node]
state_dir = "$W/state"
rpc_socket = "$W/rpc.sock"
metrics_listen = "127.0.0.1:0"
[nvmf]
listen = [$listen]
$encrypted
CONFIG
    case ${POOL:-} in
    '')
        file_device d0 "$VOLUME_MIB" "${BLOCK_SIZE:-4096}"
        v0_on 'device = "d0"'
        ;;
    mapped)
        file_device capacity $((VOLUME_MIB * 2)) 4096
        echo "[pool.hot]"
        echo "log = { pmem = \"$W/hot.log\", size = \"${LOG_MIB}MiB\", volatile = true }"
        echo 'capacity = "capacity"'
        v0_in_pool
        ;;
    block)
        file_device log "$LOG_MIB" 4096 ${LOG_PATH:+"$LOG_PATH"}
        file_device capacity $((VOLUME_MIB * 2)) 4096 ${CAPACITY_PATH:+"$CAPACITY_PATH"}
        printf '%s\n' "[pool.hot]" 'log = "log"' 'capacity = "capacity"'
        v0_in_pool
        ;;
    shaped)
        # (little more than the volume, so that bands are collected)
        file_device capacity $((VOLUME_MIB * 5 / 4)) 4096
        shaped_pool_on capacity 'write_unit = "64KiB"'
        ;;
    parity)
        for drive in 0 1 2 3; do file_device "d$drive" "$DRIVE_MIB" 4096; done
        printf '%s\n' '[[device]]' 'name = "array"' 'kind = "parity"' 'devices = ["d0", "d1", "d2", "d3"]'
        shaped_pool_on array
        ;;
    zone-bands)
        # (of each zone three quarters can be written)
        file_device drive $((VOLUME_MIB * 2)) 4096
        file_device head 32 4096
        printf '%s\n' '[[device]]' 'name = "zns"' 'kind = "zoned"' 'device = "drive"' \
            'zone_size = "16MiB"' 'capacity = "12MiB"' 'max_open = 6' 'max_active = 6' \
            '[[device]]' 'name = "bands"' 'kind = "zone-bands"' 'head = "head"' 'zones = "zns"'
        shaped_pool_on bands
        ;;
    warm)
        file_device log "$LOG_MIB" 4096
        for disk in 0 1; do file_device "d$disk" "$VOLUME_MIB" 4096; done
        file_device flash "$FLASH_MIB" 4096
        printf '%s\n' '[[device]]' 'name = "disks"' 'kind = "stripe"' 'devices = ["d0", "d1"]' \
            '[[device]]' 'name = "cache"' 'kind = "flash-cache"' 'device = "disks"' 'flash = "flash"' \
            'write_budget = "20TiB"' 'cache_missing = "pass-through"' \
            '[pool.hot]' 'log = "log"' 'capacity = "cache"'
        v0_in_pool
        ;;
    zoned)
        file_device d0 "$VOLUME_MIB" 4096
        printf '%s\n' '[[device]]' 'name = "z0"' 'kind = "zoned"' 'device = "d0"' \
            'zone_size = "16MiB"' 'capacity = "12MiB"' 'max_active = 8'
        v0_on 'device = "z0"'
        ;;
    gateway)
        printf '%s\n' '[[device]]' 'name = "far"' 'kind = "nvmf"' "address = \"127.0.0.1:$PORT_BELOW\"" \
            "nqn = \"$NQN-below\"" 'queue_depth = 64' 'loss_timeout = "60s"'
        v0_on 'device = "far"'
        ;;
    paths)
        printf '%s\n' '[[device]]' 'name = "far"' 'kind = "nvmf"' "nqn = \"$FAR_NQN\"" 'queue_depth = 64' 'loss_timeout = "60s"' \
            "paths = [$(printf '"127.0.0.1:%s", ' $FAR_PORTS)]"
        v0_on 'device = "far"'
        ;;
    *) die "unknown POOL $POOL" ;;
    esac
    cat <<CONFIG
[[subsystem]]
nqn = "$NQN"
allow_any_host = true
namespaces = [{ nsid = 1, volume = "v0" }]
CONFIG
}
# The node below a gateway is configured like any other, in a directory of its own.
below() { # COMMAND...
    W=$W/below PORT=$PORT_BELOW PORT2='' NQN=$NQN-below POOL='' "$@"
}
file_device() { # NAME MIB BLOCK_SIZE [PATH]
    printf '%s\n' "[[device]]" "name = \"$1\"" 'kind = "file"' "path = \"${4:-$W/$1.img}\"" "block_size = $3"
    [ $# = 4 ] || echo "size = \"$2MiB\""
}
shaped_pool_on() { # DEVICE [LINE...]
    local capacity=$1; shift
    file_device log "$LOG_MIB" 4096
    printf '%s\n' '[pool.hot]' 'log = "log"' "capacity = \"$capacity\"" 'shape = "shaped"' "$@"
    v0_in_pool
}
v0_in_pool() { v0_on 'pool = "hot"' "size = \"${VOLUME_MIB}MiB\"" "block_size = ${BLOCK_SIZE:-4096}"; }
v0_on() { # LINE...: the volume behind namespace 1, and where it is
    printf '%s\n' "[[volume]]" 'name = "v0"' "$@"
}

node_serve() { # in the foreground
    exec "$REMUDA" serve --config "$W/node.toml"
}
node_ready() { remuda rpc node.status >/dev/null 2>&1; }

# Outside a pool the device is made with room for the volume to grow.
node_add_namespace() { # NSID MIB
    if [ -n "${POOL:-}" ]; then
        remuda volume create "v$1" --pool hot --size "$2MiB"
        remuda subsystem add-namespace "$NQN" "v$1" --nsid "$1"
        return
    fi
    [ -e "$W/d$1.img" ] || remuda device create "d$1" --kind file "path=$W/d$1.img" "size=${VOLUME_MIB}MiB" block_size=4096
    remuda volume create "v$1" --device "d$1" --size "$2MiB"
    remuda subsystem add-namespace "$NQN" "v$1" --nsid "$1"
}
node_remove_namespace() { # NSID
    remuda subsystem remove-namespace "$NQN" "$1" --force
    remuda volume delete "v$1"
}
# A snapshot of the volume of namespace 1; a clone of it as another namespace, and itself, read-only; back to it; away with both.
node_snapshot() { remuda snapshot create "v0@$1"; } # NAME
node_show_snapshot() { # NAME NSID-OF-CLONE NSID-OF-SNAPSHOT
    remuda volume clone "v0@$1" "v$2"
    remuda subsystem add-namespace "$NQN" "v$2" --nsid "$2"
    remuda subsystem add-namespace "$NQN" "v0@$1" --nsid "$3"
}
# A copy of the snapshot in a volume of its own, by way of a stream; and then what a later one has, on top of that.
node_copy_snapshot() { # NAME NSID
    remuda snapshot export "v0@$1" | remuda snapshot import "v$2" --pool hot
    remuda subsystem add-namespace "$NQN" "v$2" --nsid "$2"
}
node_copy_on() { # FORMER-NAME NAME NSID
    remuda subsystem remove-namespace "$NQN" "$3" --force
    remuda snapshot create "v0@$2"
    remuda snapshot export "v0@$2" --since "v0@$1" --output "$W/stream"
    remuda snapshot verify "$W/stream"
    # (what mounting it has written to the copy)
    remuda snapshot import "v$3" --roll-back --input "$W/stream"
    remuda snapshot delete "v0@$2"
    remuda subsystem add-namespace "$NQN" "v$3" --nsid "$3"
}
node_roll_back() { # NAME
    # (not while hosts may use it)
    remuda subsystem remove-namespace "$NQN" 1 --force
    remuda snapshot rollback "v0@$1"
    remuda subsystem add-namespace "$NQN" v0 --nsid 1
}
node_forget_snapshot() { # NAME NSID-OF-CLONE NSID-OF-SNAPSHOT NSID-OF-COPY
    remuda subsystem remove-namespace "$NQN" "$3" --force
    node_remove_namespace "$2"
    remuda subsystem remove-namespace "$NQN" "$4" --force
    remuda volume delete "v$4" --snapshots
    remuda snapshot delete "v0@$1"
}
# The drive whose turn it is, N, goes away while the node is down. With parity it is one of four, of a warm pool the flash.
node_lost_drive() { # N
    case $POOL in
    parity) echo "d$(($1 % 4))" ;;
    warm) echo flash ;;
    *) die "a pool '$POOL' outlives the loss of no drive" ;;
    esac
}
# A blank one in its place: a member is filled under way, flash is taken in by an orderly restart.
node_replace_drive() { # NAME
    case $POOL in
    parity)
        truncate -s "${DRIVE_MIB}M" "$W/$1.img"
        remuda device rejoin array "$1"
        wait_until 90 array_is_whole
        ;;
    warm)
        truncate -s "${FLASH_MIB}M" "$W/$1.img"
        stop_pid "$W/pid" TERM
        launch
        ;;
    esac
}
array_is_whole() { remuda --json device show array | tr -d ' \n' | grep -q '"degraded":false'; }
# Every block is what it was when it was written, and nothing is the matter, but that the log of a mapped one is volatile.
node_pool_is_right() {
    local problem=
    [ "$POOL" != mapped ] || problem='"its log does not survive a power loss"'
    remuda pool scrub hot --rate 1GiB --wait
    remuda --json pool show hot | tr -d '\n' | tr -s ' ' | grep -qE "\"problems\": ?\[ ?$problem ?\]" ||
        { remuda pool status hot; return 1; }
}
node_set_ana() { # PORTAL (0 or 1) STATE
    local port=$PORT
    [ "$1" = 0 ] || port=$PORT2
    remuda subsystem set-ana "$NQN" "$2" --port "127.0.0.1:$port"
}
# Paths of a node with POOL=paths, by their port: the state, where it is one of access, and the operations that were sent there.
node_path() { # PORT FIELD
    remuda --json device show far | tr -d ' \n' | grep -o "\"address\":\"127.0.0.1:$1\"[^}]*" | sed -n "s/.*\"$2\":\"*\([a-z0-9-]*\).*/\1/p"
}
node_path_state() { node_path "$1" state; }
node_path_operations() { node_path "$1" operations; }
node_resize() { # NSID MIB
    remuda volume resize "v$1" "$2MiB"
}

# Keys for authentication: the host's first and second, and the target's.
KEYS=${INTEROP_DIR:-$W}/keys
make_keys() {
    mkdir -p "$KEYS"
    for key in a b node; do "$REMUDA" key generate "$KEYS/$key"; done
}
node_set_key() { # HOST KEY TARGET-KEY [grace | HASH GROUP]
    local how=()
    case ${4:-} in
    '') ;;
    grace) how=(--grace 1h) ;;
    *) how=(--dhchap-hash "$4" --dhchap-dhgroup "$5") ;;
    esac
    remuda host allow "$NQN" "$1" --dhchap-key "$KEYS/$2" --dhchap-ctrl-key "$KEYS/$3" "${how[@]}"
}
# The same for TLS, of two hashes.
make_tls_keys() {
    mkdir -p "$KEYS"
    for key in a b; do "$REMUDA" key generate --tls "$KEYS/$key"; done
    "$REMUDA" key generate --tls --hash sha384 "$KEYS/c"
}
node_set_tls_key() { # HOST KEY [grace]
    remuda host allow "$NQN" "$1" --tls-key "$KEYS/$2" ${3:+--grace 1h}
}

# Our own host against any target; every block read is checked. What hangs is ended, so that it costs minutes and not the hour.
host_bench() { # ADDR PORT NQN SECONDS [ARG...]
    local addr=$1 port=$2 nqn=$3 seconds=$4; shift 4
    timeout -k 5 $((seconds + 180)) "$REMUDA" bench nvmf --addr "$addr" --port "$port" --nqn "$nqn" --rw randrw --bs 4k --qd 16 --time "${seconds}s" --verify --json "$@"
}
