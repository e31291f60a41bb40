# guest job: the image of a bootable disk (the disk whose serial is `image`) onto a volume.
# env: SERIAL
disk_of() { # SERIAL: its device
    for _disk in /sys/block/vd*; do
        if [ "$(cat "$_disk/serial")" = "$1" ]; then echo "/dev/${_disk##*/}"; fi
    done
}
FROM=$(disk_of image) TO=$(disk_of "$SERIAL")
must disks test -b "$FROM" -a -b "$TO"
copy() { dd if="$FROM" of="$TO" bs=1M iflag=direct oflag=direct conv=fsync; }
step copy copy
drop_caches
same() { cmp -n "$(($(cat "/sys/block/${FROM#/dev/}/size") * 512))" "$FROM" "$TO"; }
step compare same
finish
