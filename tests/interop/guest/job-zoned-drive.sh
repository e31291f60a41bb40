# guest job: drives with zones of the guest's own under our node: an NVMe drive (ZNS, /dev/nvme0n1 of QEMU), and a shingled disk (the
# kernel's scsi_debug); a shaped pool on each, written over NVMe/TCP, killed and opened again. /dev/vda is for the log, /dev/vdb the
# head. Destroys the contents of all.
# env: [FIO_MB 48] [KILLS 2]
FIO_MB=${FIO_MB:-48}; KILLS=${KILLS:-2}
. /guestnode.sh
insmod_dep nvme; insmod_dep sd_mod

config() { # DRIVE BLOCK_SIZE [HEAD]: without a head of its own, which has blocks of the same size, it is the drive's conventional zones
    node_devices log /dev/vda ${3:+head $3}
    [ -z "$3" ] || echo "block_size = $2"
    cat <<CONFIG
[[device]]
name = "zones"
kind = "file"
path = "$1"
block_size = $2
[[device]]
name = "bands"
kind = "zone-bands"
${3:+head = 'head'}
zones = "zones"
[pool.hot]
shape = "shaped"
log = "log"
capacity = "bands"
shards = 1
[[volume]]
name = "v0"
pool = "hot"
size = "96MiB"
[[subsystem]]
nqn = "nqn.2026-11.io.remuda:guest"
allow_any_host = true
namespaces = ["v0"]
CONFIG
}
zones() { blkzone report "$1" | grep -c "zcond:.*($2)"; }
drive_shown() { remuda device show zones | tee /tmp/shown; grep -q "zones .* at most" /tmp/shown; }
pool_open() { remuda pool show hot && grep 'state *open' /tmp/out; }
told_units() { # DRIVE WRONG RIGHT: a wrong block size is refused with the right one
    config "$1" "$2" /dev/vdb >/tmp/node.toml
    remuda serve --config /tmp/node.toml >/tmp/refusal 2>&1 &
    _node=$!
    wait_until 20 told "$3"; _rc=$?
    kill -KILL $_node; wait $_node
    cat /tmp/refusal
    return $_rc
}
told() { grep -q "block_size = $1" /tmp/refusal || remuda device list 2>&1 | grep -q "block_size = $1"; }
reconnected() { dmesg | grep -c 'Successfully reconnected' >/tmp/n; [ "$(cat /tmp/n)" -ge "$1" ]; }
fill() { # writes over and over, so that bands are collected and zones reset
    fio_verify "$VOLUME" "$FIO_MB" --bs=16k --loops="$1"
}
killed_under_fio() { # NUMBER: of the kill
    fill 2 >/tmp/fio 2>&1 & _fio=$!
    sleep 3; node_kill; node_start || return 1
    wait_until 60 reconnected "$1" || return 1
    wait $_fio || { cat /tmp/fio; return 1; }
}
no_errors() { ! dmesg | grep -E 'I/O error|critical'; }
scrubbed() { remuda pool scrub hot --wait && ! grep -E 'damaged +[1-9]|lost +[1-9]' /tmp/out; }
checked() { remuda pool check --config /tmp/node.toml hot --data; }

work() { # NAME DRIVE BLOCK_SIZE [HEAD]
    must $1-empty blkzone reset "$2"
    must $1-wipe-log blkdiscard -z -f /dev/vda; must $1-wipe-head blkdiscard -z -f /dev/vdb
    config "$2" "$3" "$4" >/tmp/node.toml
    must $1-node node_start
    step $1-kind drive_shown
    must $1-pool pool_open
    must $1-connect node_connect_beside
    dmesg -c >/dev/null
    step $1-fio fill 3
    must $1-ext4 mkfs.ext4 -q -F "$VOLUME"
    must $1-mount mount_volume
    step $1-files write_files 1 20
    _kill=1
    while [ $_kill -le "$KILLS" ]; do
        (umount /mnt/x) && step $1-kill-$_kill killed_under_fio $_kill
        must $1-ext4-$_kill mkfs.ext4 -q -F "$VOLUME"; must $1-mount-$_kill mount_volume; rm -f /tmp/sums
        step $1-files-$_kill write_files 1 20
        _kill=$((_kill + 1))
    done
    umount /mnt/x
    step $1-fsck e2fsck -fn "$VOLUME"
    must $1-mount-again mount_volume
    step $1-contents compare_files
    umount /mnt/x
    step $1-no-errors no_errors
    step $1-scrub scrubbed
    remuda pool status | head -n 20
    remuda device show bands
    step $1-disconnect disconnect
    node_stop
    step $1-check checked
    echo "  zones: $(zones "$2" em) empty, $(zones "$2" fu) full, $(zones "$2" cl) closed, $(zones "$2" oi) open"
}
mount_volume() { mkdir -p /mnt/x; mount "$VOLUME" /mnt/x; }

NVME=/dev/nvme0n1
must zns-drive wait_until 20 test -b $NVME
echo "  $NVME: $(queue $NVME zoned), $(queue $NVME nr_zones) zones, open $(queue $NVME max_open_zones), active $(queue $NVME max_active_zones), unit $(queue $NVME zone_write_granularity)"
if [ -x /bin/conform ]; then step zns-conforms conform $NVME 4096; cat /tmp/out; fi
step zns-told-units told_units $NVME 512 4096
work zns $NVME 4096 /dev/vdb

# A disk whose sectors have 512 bytes, with zones of 4 MiB, eight of which may be open; the first ten are conventional.
smr_there() { SMR=/dev/$(cd /sys/block && ls -d sd? 2>/dev/null | head -n 1); test -b "$SMR"; }
insmod_dep scsi_debug zbc=host-managed zone_size_mb=4 zone_max_open=8 zone_nr_conv=10 dev_size_mb=360 sector_size=512 delay=0
must smr-drive wait_until 20 smr_there
echo "  $SMR: $(queue $SMR zoned), $(queue $SMR nr_zones) zones, open $(queue $SMR max_open_zones), active $(queue $SMR max_active_zones), unit $(queue $SMR zone_write_granularity)"
if [ -x /bin/conform ]; then step smr-conforms conform $SMR "$(queue $SMR zone_write_granularity)"; cat /tmp/out; fi
work smr $SMR "$(queue $SMR zone_write_granularity)"
finish
