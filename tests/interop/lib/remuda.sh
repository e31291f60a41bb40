# Everything that the interop suite says to the `remuda` binary. When the CLI changes, this file does.
# Expects: REMUDA (the binary), W (a directory of ours), PORT.
NQN=nqn.2026-11.io.remuda:s1
VOLUME_MIB=512

remuda() { "$REMUDA" --socket "$W/rpc.sock" "$@"; }

# A file device: what was acknowledged must survive a SIGKILL of the node.
node_config() {
    cat <<CONFIG
[node]
state_dir = "$W/state"
rpc_socket = "$W/rpc.sock"
metrics_listen = "127.0.0.1:0"
[nvmf]
listen = ["127.0.0.1:$PORT"]
[[device]]
name = "d0"
kind = "file"
path = "$W/d0.img"
size = "${VOLUME_MIB}MiB"
block_size = ${BLOCK_SIZE:-4096}
[[volume]]
name = "v0"
device = "d0"
[[subsystem]]
nqn = "$NQN"
allow_any_host = true
namespaces = [{ nsid = 1, volume = "v0" }]
CONFIG
}

node_serve() { # in the foreground
    exec "$REMUDA" serve --config "$W/node.toml"
}
node_ready() { remuda status --json >/dev/null 2>&1; }

# The device is made with room for the volume to grow.
node_add_namespace() { # NSID MIB
    [ -e "$W/d$1.img" ] || remuda device create "d$1" --kind file "path=$W/d$1.img" "size=${VOLUME_MIB}MiB" block_size=4096
    remuda volume create "v$1" --device "d$1" --size "$2MiB"
    remuda subsystem add-namespace "$NQN" "v$1" --nsid "$1"
}
node_remove_namespace() { # NSID
    remuda subsystem remove-namespace "$NQN" "$1"
    remuda volume delete "v$1"
}
node_resize() { # NSID MIB
    remuda volume resize "v$1" "$2MiB"
}

# Our own host against any target; every block read is checked.
host_bench() { # ADDR PORT NQN SECONDS [ARG...]
    local addr=$1 port=$2 nqn=$3 seconds=$4; shift 4
    "$REMUDA" bench nvmf --addr "$addr" --port "$port" --nqn "$nqn" --rw randrw --bs 4k --qd 16 --time "${seconds}s" --verify --json "$@"
}
