# guest job: a guest whose firmware, boot loader, kernel and root file system came from a volume.
# env: SERIAL BOOT (1: writes files while the node is killed; 2: finds them)
D=/dev/vda

step disk [ "$(cat /sys/block/vda/serial)" = "$SERIAL" ]
# (what the boot loader adds to the kernel's command line)
step boot-loader grep -q BOOT_IMAGE=vmlinuz /proc/cmdline
on_root() { [ "$(stat -c %d /)" = "$(stat -c %d /etc)" ] && grep -q "^${D}2 / ext4 rw" /proc/mounts; }
step root-on-volume on_root

mkdir -p /data /mnt/x
must data mount --bind /data /mnt/x
if [ "$BOOT" = 1 ]; then
    : >/tmp/sums
    write_under_kill() {
        write_files 1 40 & _pid=$!
        sleep 2
        host_do restart && wait $_pid
    }
    step kill-under-root write_under_kill
    # A program that is read from the volume after all caches are empty.
    drop_caches
    step run-from-volume /usr/sbin/mkfs.ext4 -V
    step note cp /tmp/sums /sums
    step sync sync
else
    step data-compare compare_files /sums 40
fi
step read-only mount -o remount,ro /
step fsck e2fsck -fn ${D}2
io_errors() { dmesg | grep -E 'I/O error|Buffer I/O|EXT4-fs error'; }
refused no-io-errors io_errors
finish
