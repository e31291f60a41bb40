# guest job: a pool on devices whose every write, flush and FUA is recorded on /dev/vda by dm-log-writes, in the order
# in which they became durable. Writers work on its volume through the kernel's host and note what was acknowledged in
# marks of the same recording. What a power loss at any point of it leaves is tried outside (crates/engine/examples/power_loss).
# env: LOG_MIB CAPACITY_MIB SEED STEPS (of each writer) [SHAPE hot: of the pool]
#      [LIES log|capacity: once the pool is there, that device does nothing when told to flush: the mutation]
. /guestnode.sh
insmod_dep brd rd_nr=1 rd_size=$(((LOG_MIB + CAPACITY_MIB) * 1024)) max_part=0
insmod_dep dm-log-writes

make_dm() { # NAME TABLE...
    _dm=$1; shift
    dmsetup create --noudevsync "$_dm" --table "$*" && dmsetup mknodes
}
# One recorder under all parts has them in one order.
part() { make_dm "$1" 0 $(($3 * 2048)) linear /dev/mapper/recorder $(($2 * 2048)); }
devices() {
    make_dm recorder 0 "$(blockdev --getsz /dev/ram0)" log-writes /dev/ram0 /dev/vda &&
        part log 0 "$LOG_MIB" && part capacity "$LOG_MIB" "$CAPACITY_MIB"
}
must devices devices
dm_of() { echo "dm-$((0x$(stat -c %T "/dev/mapper/$1")))"; }
# To a device without a volatile cache the kernel sends neither flushes nor FUA.
lies() { echo "write through" >"/sys/block/$(dm_of "$1")/queue/write_cache"; }
{ node_devices log /dev/mapper/log capacity /dev/mapper/capacity; node_pool "shape = \"${SHAPE:-hot}\"
log = \"log\""; } >/tmp/node.toml
must node node_start
must connect node_connect
if [ -n "$LIES" ]; then must lies lies "$LIES"; fi
for name in log capacity; do
    echo "  $name: $(queue "$(dm_of $name)" write_cache), fua $(queue "$(dm_of $name)" fua)"
done
step work power_loss write /dev/nvme0n1 recorder:recorder "$SEED" "$STEPS"
cat /tmp/out
remuda pool status
step disconnect disconnect
node_kill
close_devices() { dmsetup remove log && dmsetup remove capacity && dmsetup remove recorder; }
step close-recording close_devices
finish
