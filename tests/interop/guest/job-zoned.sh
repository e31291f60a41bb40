# guest job: a zoned namespace under the kernel's host: what the block layer makes of it, zones by blkzone and nvme-cli, appends,
# zonefs, and a node that is killed, and one that is stopped and started, in between. Destroys the namespace's contents.
# env: TRADDR TRSVCID NQN  [EXTRA] [ZONE_MIB 16] [CAPACITY_MIB 12] [ACTIVE 8] [FILES 4]
D=/dev/nvme0n1; ZONE_MIB=${ZONE_MIB:-16}; CAPACITY_MIB=${CAPACITY_MIB:-12}; ACTIVE=${ACTIVE:-8}; FILES=${FILES:-4}

# With multipathing 6.12 miscounts the users of a queue when a write of a zone is repeated ("percpu ref underflow") and waits for
# ever, and 6.1 tells no limits.
for m in nvme_tcp nvme_fabrics nvme_core; do rmmod $m; done
insmod /mods/nvme-core.ko multipath=N && insmod /mods/nvme-fabrics.ko && insmod /mods/nvme-tcp.ko
must connect connect --ctrl-loss-tmo=300 --reconnect-delay=1 --keep-alive-tmo=5
must namespace wait_until 10 test -b $D

# --- what the block layer makes of it -------------------------------------------------------------
BLOCK=$(queue $D logical_block_size); ZONE=$((ZONE_MIB * 1048576 / BLOCK)); ZONES=$(queue $D nr_zones)
echo "zoned: $(queue $D zoned), $ZONES zones, block $BLOCK, append $(queue $D zone_append_max_bytes)"
step host-managed test "$(queue $D zoned)" = host-managed
step zone-size test "$(queue $D chunk_sectors)" = $((ZONE_MIB * 2048))
step active-zones-max test "$(queue $D max_active_zones)" = $ACTIVE
step whole-zones test "$(sectors $D)" = $((ZONES * ZONE_MIB * 2048))

# zone_is NUMBER CONDITION [BLOCKS]: as blkzone reports it, with so many blocks written
zone_is() {
    blkzone report -o $(($1 * ZONE_MIB * 2048)) -c 1 $D >/tmp/zone
    _wptr=$(sed -n 's/.*wptr 0x\([0-9a-f]*\).*/\1/p' /tmp/zone)
    grep -q "($2)" /tmp/zone && { [ -z "$3" ] || [ $((0x$_wptr * 512 / BLOCK)) = "$3" ]; } || { cat /tmp/zone; return 1; }
}
count() { blkzone report $D | grep -c "zcond:.*($1)"; }
all_empty() { [ "$(count em)" = "$ZONES" ]; }
# (nvme-cli names zones by their first blocks)
zns() { _what=$1; _zone=$2; shift 2; nvme zns "$_what" $D -s $((_zone * ZONE)) "$@"; }

must reset-all blkzone reset $D
step all-empty all_empty
capacity() { blkzone report -c 1 $D | grep -q "cap $(printf '0x%06x' $((CAPACITY_MIB * 2048)))"; }
step capacity capacity
zns_list() { nvme zns list | tee /tmp/list | grep -q $D; }
step zns-list zns_list
step zns-id-ctrl nvme zns id-ctrl /dev/nvme0
zns_id_ns() { nvme zns id-ns $D | tee /tmp/id | grep -qi "^mar *: *$(printf '0x%x' $((ACTIVE - 1)))\|^mar *: *$((ACTIVE - 1))" || { cat /tmp/id; return 1; }; }
step zns-id-ns zns_id_ns
zns_report() { nvme zns report-zones $D | tee /tmp/report | grep -c 'SLBA:' >/tmp/n && [ "$(cat /tmp/n)" = "$ZONES" ] || { cat /tmp/report; return 1; }; }
step zns-report-zones zns_report

# --- from state to state --------------------------------------------------------------------------
step zns-open zns open-zone 1
step is-open zone_is 1 oe
step zns-close zns close-zone 1
step is-closed zone_is 1 cl
step zns-finish zns finish-zone 1
step is-full zone_is 1 fu
step zns-reset zns reset-zone 1
step is-empty zone_is 1 em
at() { echo "-o $(($1 * ZONE_MIB * 2048)) -c ${2:-1}"; }
step blkzone-open blkzone open $(at 1) $D
step blkzone-is-open zone_is 1 oe
step blkzone-close blkzone close $(at 1) $D
step blkzone-finish blkzone finish $(at 1) $D
step blkzone-is-full zone_is 1 fu
refused open-full blkzone open $(at 1) $D
step open-all-there-may-be blkzone open $(at 2 $ACTIVE) $D
refused one-more blkzone open $(at $((ACTIVE + 2))) $D
step count-open test "$(count oe)" = $ACTIVE
step blkzone-reset blkzone reset $D
step all-empty-again all_empty

# --- data, at the write pointer and nowhere else --------------------------------------------------
dd if=/dev/urandom of=/tmp/a bs=1M count="$CAPACITY_MIB" 2>/dev/null
MIB=$((1048576 / BLOCK))
zone_read() { dd if=$D of=/tmp/b bs=1M skip=$(($1 * ZONE_MIB)) count="$2" iflag=direct && cmp -n $(($2 * 1048576)) /tmp/a /tmp/b; }
step fill dd if=/tmp/a of=$D bs=256k seek=$((ZONE_MIB * 4)) oflag=direct conv=notrunc
step filled zone_is 1 fu
step read-filled zone_read 1 "$CAPACITY_MIB"
refused write-full dd if=/tmp/a of=$D bs=1M count=1 seek=$ZONE_MIB oflag=direct conv=notrunc
refused write-elsewhere dd if=/tmp/a of=$D bs=1M count=1 seek=$((2 * ZONE_MIB + 1)) oflag=direct conv=notrunc
step not-written zone_is 2 em
append() { head -c 65536 /tmp/a | zns zone-append 3 -z 65536 >/tmp/append && cat /tmp/append; }
step append append
step append-again append
step appended zone_is 3 oi $((131072 / BLOCK))
twice() { dd if=$D of=/tmp/b bs=64k skip=$((3 * ZONE_MIB * 16)) count=2 iflag=direct && cmp -n 65536 /tmp/a /tmp/b && cmp -n 65536 /tmp/a /tmp/b 0 65536; }
step read-appended twice
must reset-before-fio blkzone reset $D
fio_zbd() { # ARG...: writes zones in turn, and checks them
    fio --name=z --filename=$D --direct=1 --zonemode=zbd --ioengine=libaio --rw=randwrite --bs=64k --iodepth=8 \
        --max_open_zones=4 --size=$((ZONE_MIB * 6))M --verify=crc32c --verify_fatal=1 "$@"
}
step fio-zbd fio_zbd --io_size=32M

# --- the node is stopped and started while zones are written ---------------------------------------
reconnects() { dmesg | grep -c 'Successfully reconnected'; }
came_back() { [ "$(reconnects)" -gt "$before" ] && [ "$(cat /sys/class/nvme/nvme0/state)" = live ]; }
back() { wait_until 60 came_back; }
# A zone takes a block once: what was carried out must have been answered before the connection ended.
roll_under_fio() {
    before=$(reconnects)
    fio_zbd --io_size=64M --rate=8m >/tmp/fio.out 2>&1 & _fio=$!
    sleep 3
    host_do roll || return 1
    wait $_fio || { cat /tmp/fio.out; return 1; }
    back
}
for i in $(seq 1 "${ROLLS:-2}"); do
    must reset-before-roll-$i blkzone reset $D
    step roll-$i-under-fio roll_under_fio
done

# The older kernel takes each append of its zonefs for misplaced, on an emulated drive (QEMU's) as here.
case $(uname -r) in 6.1.*) step disconnect disconnect; finish ;; esac

# --- zonefs: each zone is a file ------------------------------------------------------------------
# Its superblock, as mkzonefs would write it: magic, checksum, label, UUID, no features.
superblock() {
    { printf 'SFOZ\216\077\240\235remuda'; head -c 58 /dev/zero; printf remuda.zoned.ns1; head -c 4008 /dev/zero; } >/tmp/super
    [ "$(stat -c %s /tmp/super)" = 4096 ] && dd if=/tmp/super of=$D bs=4k oflag=direct conv=notrunc
}
insmod_dep zonefs
must reset-before-zonefs blkzone reset $D
must zonefs-superblock superblock
mkdir -p /mnt/z
must mount-zonefs mount -t zonefs $D /mnt/z
files() { [ "$(ls /mnt/z/seq | wc -l)" = $((ZONES - 1)) ]; }
step zone-files files
# Files grow by direct appends alone. Each that is noted is to be there in the end.
: >/tmp/sums
write_file() { dd if=/tmp/a of="/mnt/z/seq/$1" bs=256k count="$2" oflag=direct,append conv=notrunc; }
note() { (cd /mnt/z/seq && sha256sum "$1" >>/tmp/sums); }
sums() { drop_caches; (cd /mnt/z/seq && sha256sum -c -s /tmp/sums); }
for f in $(seq 1 "$FILES"); do step write-file-$f write_file "$f" $((f * 4 + 1)); note "$f"; done
step size-of-file test "$(stat -c %s /mnt/z/seq/2)" = $((9 * 262144))
refused overwrite dd if=/tmp/a of=/mnt/z/seq/2 bs=256k count=1 oflag=direct conv=notrunc
step fill-file write_file 10 $((CAPACITY_MIB * 4))
note 10
refused beyond-capacity dd if=/tmp/a of=/mnt/z/seq/10 bs=256k count=1 oflag=direct,append conv=notrunc
step reset-by-truncate truncate -s 0 /mnt/z/seq/10
sed -i '/  10$/d' /tmp/sums
finished() { truncate -s $((CAPACITY_MIB * 1048576)) /mnt/z/seq/11 && zone_is 12 fu; }
step finish-by-truncate finished
step sums sums

# --- the node is killed, then stopped and started ------------------------------------------------
# (flushed: what is behind a pointer's last flush would be gone, as with any volatile cache)
step flush nvme flush /dev/nvme0 -n 1
before=$(reconnects)
must kill host_do restart
must reconnect back
step sums-after-kill sums
write_on() { write_file "$1" 3 && sed -i "/  $1\$/d" /tmp/sums && note "$1"; }
step write-on write_on 1
step sums-written-on sums

# Nothing is flushed here: an orderly stop loses nothing.
writer() { for i in $(seq 1 30); do write_file 12 1 && write_file 13 1 || return 1; sleep 0.1; done; }
writer >/tmp/writer.out 2>&1 & WRITER=$!
sleep 1
before=$(reconnects)
must roll host_do roll
written() { wait $WRITER || { cat /tmp/writer.out; return 1; }; }
step written-through-roll written
must reconnect-after-roll back
whole() { # FILE: thirty times the same piece, so at its right place each time
    [ "$(stat -c %s "/mnt/z/seq/$1")" = $((30 * 262144)) ] || return 1
    for i in $(seq 0 29); do cmp -n 262144 /tmp/a "/mnt/z/seq/$1" 0 $((i * 262144)) || return 1; done
}
step whole-12 whole 12
step whole-13 whole 13
step sums-after-roll sums
must umount umount /mnt/z
must mount-again mount -t zonefs $D /mnt/z
step sums-mounted-again sums
must umount-again umount /mnt/z

# --- a zone goes out of use -----------------------------------------------------------------------
# (by the last number: the kernel asks for no event, so the list is read)
changed_list() { nvme zns changed-zone-list $D -n 1 | tee /tmp/list | grep -qw $(((ZONES - 1) * ZONE)) || { cat /tmp/list; return 1; }; }
step ask-retire host_do retire-zone $((ZONES - 1)) offline
step is-offline zone_is $((ZONES - 1)) of
step zns-changed-zone-list wait_until 5 changed_list
io_errors() { dmesg | grep -E 'zonefs.*(error|WARNING|read-only|offline)'; }
refused no-zonefs-errors io_errors
step disconnect disconnect
finish
