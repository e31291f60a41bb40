#!/bin/bash
# boot-image.sh GUESTDIR IMAGE MIB -- a disk that a PC's firmware boots from: GRUB before the first partition, a FAT partition
# with the kernel and a small initramfs, and an ext4 partition with the root file system of the guest's jobs.
#
# An emulated processor does not notice what another process writes over code that it has run: QEMU without KVM goes on with the
# old code. So the boot loader is one that reads nothing to where something has run (most boot sectors do), and the kernel
# clears pages before it uses them again (init_on_alloc).
#
# The job of a boot is an archive on a further disk whose serial is `job` (guest-run.sh with FROM_DISK), unpacked onto the root.
# Debian packages needed: grub-pc-bin grub-common mtools dosfstools fdisk e2fsprogs cpio. No privileges.
set -euo pipefail
GUEST=${1:?usage: boot-image.sh GUESTDIR IMAGE MIB} IMAGE=${2:?image} MIB=${3:?MiB}
BOOT_MIB=48
export PATH=$PATH:/usr/sbin:/sbin
missing=
for p in grub-mkimage mcopy mkfs.fat sfdisk mkfs.ext4 cpio; do command -v $p >/dev/null || missing="$missing $p"; done
[ -z "$missing" ] || { echo "boot-image: missing:$missing; run: apt-get install grub-pc-bin grub-common mtools dosfstools fdisk" >&2; exit 1; }

T=$(mktemp -d "${TMPDIR:-/tmp}/remuda-boot.XXXXXX")
trap 'rm -rf "$T"' EXIT
mkdir -p "$T/root" "$T/initrd"/{bin,proc,sys,dev,mods,new}
(cd "$T/root" && cpio --quiet -idm <"$GUEST/base.cpio")
mkdir -p "$T/root"/{data,mnt/x}

# --- the initramfs: modules, and over to the root on the disk ------------------------------------
cp "$T/root/bin/busybox" "$T/initrd/bin/"
ln -s busybox "$T/initrd/bin/sh"
cp "$T/root/mods/boot.list" "$T/initrd/mods/"
while read -r module; do cp "$T/root/mods/$module.ko" "$T/initrd/mods/"; done <"$T/root/mods/boot.list"
cat >"$T/initrd/init" <<'INIT'
#!/bin/sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for m in $(cat /mods/boot.list); do insmod /mods/$m.ko 2>/dev/null; done
for _ in $(seq 100); do [ ! -b /dev/vda2 ] || break; sleep 0.1; done
mount -t ext4 -o rw /dev/vda2 /new || { echo "no root file system"; poweroff -f; }
for disk in /sys/block/vd*; do
    [ "$(cat $disk/serial)" != job ] || (cd /new && cpio -idmu </dev/${disk##*/} 2>/dev/null)
done
umount /dev /sys /proc
exec switch_root /new /init
INIT
chmod +x "$T/initrd/init"
(cd "$T/initrd" && find . | cpio --quiet -o -H newc | gzip -1) >"$T/initrd.gz"

# --- partitions ----------------------------------------------------------------------------------
cat >"$T/grub.cfg" <<'CONFIG'
serial --unit=0 --speed=115200
terminal_output serial
set root=hd0,msdos1
linux /vmlinuz BOOT_IMAGE=vmlinuz console=ttyS0 quiet panic=-1 oops=panic no_timer_check mitigations=off random.trust_cpu=on init_on_alloc=1
initrd /initrd.gz
boot
CONFIG
grub-mkimage -O i386-pc -o "$T/core.img" -p '(hd0,msdos1)/' -c "$T/grub.cfg" biosdisk part_msdos fat linux serial terminal boot
rm -f "$IMAGE"
truncate -s "${MIB}M" "$IMAGE"
root_at=$((BOOT_MIB + 1))
sfdisk -q "$IMAGE" <<TABLE
label: dos
start=1MiB, size=${BOOT_MIB}MiB, type=e, bootable
start=${root_at}MiB, size=$((MIB - root_at - 1))MiB, type=83
TABLE
# (as they are made, the boot sector looks for the rest right behind itself)
dd if=/usr/lib/grub/i386-pc/boot.img of="$IMAGE" bs=440 count=1 conv=notrunc status=none
dd if="$T/core.img" of="$IMAGE" bs=512 seek=1 conv=notrunc status=none
# (it warns that the file goes on behind the partition)
mkfs.fat -F 16 --offset 2048 "$IMAGE" $((BOOT_MIB * 1024)) >/dev/null 2>&1
export MTOOLS_SKIP_CHECK=1
for file in "$GUEST/vmlinuz:vmlinuz" "$T/initrd.gz:initrd.gz"; do
    mcopy -i "$IMAGE@@1M" "$(readlink -f "${file%%:*}")" "::${file##*:}"
done
mkfs.ext4 -q -F -d "$T/root" -E offset=$((root_at << 20)),lazy_itable_init=0,lazy_journal_init=0 "$IMAGE" \
    "$((MIB - root_at - 1))M"
