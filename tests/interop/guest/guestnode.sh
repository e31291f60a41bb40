# A node of ours inside the guest, with a hot pool of one volume and a namespace of it, for the jobs that ship our binary.
REMUDA_SOCKET=/tmp/rpc.sock; export REMUDA_SOCKET

# The configuration is what these two print. Devices are NAME PATH pairs; the log of the pool is a line of its table.
node_devices() {
    cat <<CONFIG
[node]
state_dir = "/tmp/state"
rpc_socket = "$REMUDA_SOCKET"
metrics_listen = "off"
poll_policy = "sleep"
[nvmf]
listen = ["127.0.0.1:4420"]
CONFIG
    while [ $# -gt 0 ]; do
        printf '%s\n' "[[device]]" "name = \"$1\"" 'kind = "file"' "path = \"$2\""
        shift 2
    done
}
node_pool() { # LINE: on the device `capacity`
    cat <<CONFIG
[pool.hot]
$1
capacity = "capacity"
[[volume]]
name = "v0"
pool = "hot"
size = "512MiB"
[[subsystem]]
nqn = "nqn.2026-11.io.remuda:guest"
allow_any_host = true
namespaces = ["v0"]
CONFIG
}

node_ready() { remuda rpc node.status >/dev/null 2>&1; }
node_start() { # with /tmp/node.toml
    mkdir -p /tmp/state
    remuda serve --config /tmp/node.toml >>/tmp/node.log 2>&1 &
    NODE=$!
    wait_until 60 node_ready || { cat /tmp/node.log; return 1; }
}
node_kill() { kill -KILL $NODE; wait $NODE; }
# (a guest that has NVMe drives of its own: the volume is the disk that came)
node_connect_beside() { # its volume becomes $VOLUME
    nvme_disks >/tmp/disks-before
    TRADDR=127.0.0.1 TRSVCID=4420 NQN=nqn.2026-11.io.remuda:guest
    connect --ctrl-loss-tmo=300 --reconnect-delay=1 --keep-alive-tmo=30 && wait_until 20 volume_came
}
nvme_disks() { ls /sys/block | grep '^nvme[0-9]*n[0-9]*$'; }
volume_came() { VOLUME=/dev/$(nvme_disks | grep -vxFf /tmp/disks-before | head -n 1); test -b "$VOLUME"; }
node_stop() { kill -TERM $NODE; wait $NODE; }
node_connect() { # its volume becomes /dev/nvme0n1
    TRADDR=127.0.0.1 TRSVCID=4420 NQN=nqn.2026-11.io.remuda:guest
    connect --ctrl-loss-tmo=300 --reconnect-delay=1 --keep-alive-tmo=30 && wait_until 20 test -b /dev/nvme0n1
}
