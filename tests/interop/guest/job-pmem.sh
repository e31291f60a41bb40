# guest job: a pool whose log lies in persistent memory: an NVDIMM with a DAX file system and one as a DAX device, and
# virtio-pmem, whose stores are durable only when the kernel is told to flush. /dev/vda is for capacity, /dev/vdb for notes.
# env: STAGE 1 (everything; ends in a crash of the machine under I/O) | 2 (after that crash: all must be there)
#      [LOG_ON file | device: the log that is worked on and crashed is a file on ext4 with DAX, or the DAX device itself; what is durable
#      and what is not is asked with the file alone]
#      [LOG_DAX: empty to leave DAX off at the crash, with a log that is allowed to be volatile: the mutation]
LOG_DAX=${LOG_DAX-yes}; LOG_ON=${LOG_ON:-file}
. /guestnode.sh
insmod_dep nfit; insmod_dep nd_pmem; insmod_dep device_dax; insmod_dep dax_pmem; insmod_dep virtio_pmem

# (a pmem disk is the NVDIMM's or the virtio device's, as its path says)
pmem_of() { # nvdimm|virtio
    for _b in /sys/block/pmem*; do
        case $(readlink -f "$_b") in
        */virtio*) [ "$1" = virtio ] && basename "$_b" ;;
        *) [ "$1" = nvdimm ] && basename "$_b" ;;
        esac
    done
}
dax() { ls /dev/dax* 2>/dev/null | head -n 1; }
there() { [ -n "$(pmem_of nvdimm)" ] && [ -n "$(pmem_of virtio)" ] && [ -n "$(dax)" ]; }
mount_log() { # DEVICE [dax]
    mkdir -p /mnt/p && mount -t ext4 ${2:+-o $2} "$1" /mnt/p && if [ -n "$2" ]; then grep -q 'mnt/p.*dax' /proc/mounts; fi
}
make_fs() { mkfs.ext4 -q -F -b 4096 "$1"; }

# The log of the pool that is worked on: log_at, once its file system is mounted or its device is there.
log_at=/mnt/p/log
log_ready() { # [new]: on a file system that is made now
    if [ $LOG_ON = device ]; then log_at=$(dax); return; fi
    [ -z "$1" ] || make_fs "/dev/$(pmem_of nvdimm)" || return 1
    mount_log "/dev/$(pmem_of nvdimm)" ${LOG_DAX:+dax}
}
durable_config() {
    _volatile=; [ -n "$LOG_DAX" ] || _volatile=", volatile = true"
    node_devices capacity /dev/vda
    node_pool "log = { pmem = \"$log_at\", size = \"64MiB\"$_volatile }"
}
durable() { # what the node says of the log
    remuda pool status hot >/tmp/status 2>&1
    cat /tmp/status
    grep -q 'state *open' /tmp/status && ! grep -q -E 'volatile|does not survive' /tmp/status
}
pool_open() { remuda pool show hot && grep 'state *open' /tmp/out; }
log_as_meant() { if [ -n "$LOG_DAX" ]; then durable; else ! durable; fi; }
verify() { power_loss verify /dev/nvme0n1 /dev/vdb 7; }

if [ "$STAGE" = 2 ]; then
    must devices wait_until 10 there
    must log-after-crash log_ready
    durable_config >/tmp/node.toml
    must node-after-crash node_start
    step log-as-before log_as_meant
    must pool-opens pool_open
    must connect node_connect
    step verify-after-crash verify
    cat /tmp/out
    remuda pool status | head -n 16
    step disconnect disconnect
    node_kill
    finish
fi

make_namespaces() {
    ndctl create-namespace -f -e namespace0.0 -m fsdax -M mem && ndctl create-namespace -f -e namespace1.0 -m devdax -M mem
}
must namespaces make_namespaces
must devices wait_until 10 there
NVDIMM=/dev/$(pmem_of nvdimm); VIRTIO=/dev/$(pmem_of virtio); DAX=$(dax)
echo "  NVDIMM $NVDIMM and $DAX, virtio $VIRTIO"

# --- what is durable, and what is not -------------------------------------------------------------
create() { remuda pool create hot --log-pmem "$1" --log-size "${SIZE:-64MiB}" --capacity capacity ${2:-}; }
not_durable() { create "$1"; [ $? != 0 ] && grep -q MAP_SYNC /tmp/out && ! remuda pool show hot; }
labelled() { # PATH: taken only when told that it may be lost, and said to be so
    create "$1" --volatile && remuda pool status hot | grep 'does not survive a power loss' && destroy
}
destroy() { remuda pool destroy hot --yes; }
accepted() { create "$1" && durable && destroy; }

ask_what_is_durable() {
    node_devices capacity /dev/vda >/tmp/node.toml
    must node node_start
    step tmpfs-refused not_durable /tmp/log
    step block-device-refused not_durable "$NVDIMM"
    must ext4-no-dax make_fs "$NVDIMM"; must mount-no-dax mount_log "$NVDIMM"
    step ext4-no-dax-refused not_durable $log_at
    step ext4-no-dax-labelled labelled $log_at
    umount /mnt/p
    # (the file system itself works with DAX there, and the mapping is refused all the same: a fence is not enough for it)
    must virtio-pmem-ext4 make_fs "$VIRTIO"; must virtio-pmem-mount mount_log "$VIRTIO" dax
    step virtio-pmem-refused not_durable $log_at
    step virtio-pmem-labelled labelled $log_at
    umount /mnt/p
    block_log() {
        remuda device create vlog --kind file "path=$VIRTIO" block_size=4096 &&
            remuda pool create hot --log vlog --capacity capacity --force && durable && destroy && remuda device delete vlog
    }
    step virtio-pmem-block-log block_log
    step dax-device accepted "$DAX"
    must dax-ext4 make_fs "$NVDIMM"; must dax-mount mount_log "$NVDIMM" dax
    step dax-file accepted $log_at
    rm -f $log_at
    too_large() { SIZE=1GiB create /mnt/p/large; [ $? != 0 ] && node_ready; }
    step larger-than-file-system too_large
    node_kill; umount /mnt/p
}
[ $LOG_ON = device ] || ask_what_is_durable

# --- work, a killed process, a crashed machine ----------------------------------------------------
must log log_ready new
durable_config >/tmp/node.toml
must pool node_start
step log-as-meant log_as_meant
bench() { remuda bench nvmf --addr 127.0.0.1 --nqn "$NQN" --rw randrw --bs 4k --qd 8 --time 3s --range 64MiB --verify; }
must connect node_connect
step bench-verify bench
# (what is not in the notes reads as zeroes)
step discard blkdiscard /dev/nvme0n1
survive() { # (the writers go on until they are killed; an I/O error would end them)
    power_loss write /dev/nvme0n1 /dev/vdb 7 0 >/tmp/writers 2>&1 & _writers=$!
    sleep 1; node_kill; node_start || return 1
    wait_until 60 reconnected || return 1
    sleep 1; kill -KILL $_writers || { cat /tmp/writers; return 1; }
    wait $_writers || true
}
reconnected() { dmesg | grep -q 'Successfully reconnected'; }
step kill-under-writers survive
step verify verify
cat /tmp/out
remuda pool status | head -n 16
power_loss write /dev/nvme0n1 /dev/vdb 7 0 &
sleep 4
[ $FAILED = 0 ] || finish
echo CRASH-NOW
echo b >/proc/sysrq-trigger
