# guest job: an NVMe drive with placement handles (FDP, /dev/nvme0n1 of QEMU) under a shaped pool of our node: its streams must become
# write streams of the kernel (6.16 and later), and placement handles of the drive. /dev/vda is for the log.
. /guestnode.sh
insmod_dep nvme
NVME=/dev/nvme0n1
must drive wait_until 20 test -b $NVME
STREAMS=$(cat /sys/block/nvme0n1/queue/max_write_streams 2>/dev/null)
echo "  $NVME: ${STREAMS:-no} write streams, granularity $(cat /sys/block/nvme0n1/queue/write_stream_granularity 2>/dev/null)"
must kernel-has-streams test "${STREAMS:-0}" -gt 1

# media_left HANDLE: what its reclaim unit still takes
statuses() { nvme fdp status $NVME | sed -n 's/.*(RUAMW)[^0-9]*\([0-9]*\).*/\1/p'; }
node_devices log /dev/vda capacity $NVME >/tmp/node.toml
node_pool 'shape = "shaped"
log = "log"
shards = 1' >>/tmp/node.toml
sed -i 's/size = "512MiB"/size = "192MiB"/' /tmp/node.toml
must node node_start
statuses >/tmp/before
must connect node_connect_beside
# (what is written over and over is young, and what is collected of the rest is old)
fill() {
    dd if=/dev/urandom of="$VOLUME" bs=1M count=190 oflag=direct 2>/dev/null && fio_verify "$VOLUME" 190 --bs=64k &&
        fio --name=w --filename="$VOLUME" --direct=1 --ioengine=libaio --rw=randwrite --bs=16k --iodepth=16 --size=190M --io_size=400M \
            --random_distribution=zipf:1.1 --norandommap
}
must fio fill
step scrub remuda pool scrub hot --wait
remuda pool show hot | grep -E 'bands|amplification|space'
statuses >/tmp/after-status
paste /tmp/before /tmp/after-status | awk '{ print "  handle", NR - 1, "took", $1 - $2 }'
used() { _n=$(paste /tmp/before /tmp/after-status | awk '$1 != $2' | wc -l); echo "$_n handles were written with"; [ "$_n" -ge "$1" ]; }
step handles-used used 2
nvme fdp stats /dev/nvme0 -e 1 2>/dev/null || nvme fdp stats /dev/ng0n1 -e 1
disconnect
node_kill
finish
