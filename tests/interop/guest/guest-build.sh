#!/bin/bash
# guest-build.sh -- a bootable kernel and initramfs for QEMU, out of Debian packages alone.
#
#   guest-build.sh 6.12|6.1|PACKAGE        prints the directory that guest-run.sh takes
#
# The newest kernel package of that series is downloaded and unpacked (never installed) under
# ${XDG_CACHE_HOME:-$HOME/.cache}/remuda-guest; a second call with nothing changed costs nothing.
#
# environment (all optional):
#   KPKG   kernel package, when neither series fits
#   MODS   modules loaded at boot, in order
#   XMODS  modules shipped but not loaded (in the guest: insmod_dep NAME)
#   BINS   host programs copied in with their shared libraries
# Debian packages needed: busybox-static cpio kmod xz-utils mawk, and those that own BINS.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/programs.sh"
SERIES=${1:?usage: guest-build.sh 6.12|6.1|PACKAGE}
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/remuda-guest
MODS=${MODS-crc32c_intel crc32c_generic virtio_pci virtio_net virtio_blk ext4 nvme-tcp}
XMODS=${XMODS-xfs nvmet nvmet-tcp brd loop dm-log-writes zonefs gcm ghash-generic tls nfit nd_pmem device_dax dax_pmem virtio_pmem nvme sd_mod scsi_debug}
BINS=${BINS-/usr/bin/dd /usr/sbin/blkdiscard /usr/sbin/nvme /usr/sbin/mkfs.ext4 /usr/sbin/e2fsck /usr/sbin/resize2fs /usr/sbin/mkfs.xfs /usr/sbin/xfs_repair /usr/bin/fio}

newest() { # the newest package whose name matches the pattern
    apt-cache search --names-only "$1" | awk '{print $1}' | sort -V | tail -1
}
case $SERIES in
6.12) KPKG=${KPKG:-$(newest '^linux-image-6\.12\.[0-9]+\+deb12-amd64$')} ;;
6.1) KPKG=${KPKG:-$(newest '^linux-image-6\.1\.0-[0-9]+-amd64$')} ;;
*) KPKG=${KPKG:-$SERIES} ;;
esac
[ -n "$KPKG" ] || { echo "guest-build: apt knows no kernel package for $SERIES; run: apt-get update" >&2; exit 1; }

missing=
for p in /bin/busybox $BINS; do [ -x "$p" ] || missing="$missing $p"; done
for p in cpio depmod xz awk; do command -v "$p" >/dev/null || missing="$missing $p"; done
[ -z "$missing" ] || { echo "guest-build: missing:$missing; run: apt-get install busybox-static cpio kmod xz-utils nvme-cli e2fsprogs xfsprogs fio" >&2; exit 1; }

OUT=$CACHE/$SERIES
mkdir -p "$OUT"
exec 8>"$CACHE/lock"
flock 8
stamp="$KPKG $MODS $XMODS $(sha256sum "$HERE/guest-build.sh" "$HERE/programs.sh" "$HERE/guestlib.sh" "$HERE/guestnode.sh" $BINS | sha256sum)"
if [ -e "$OUT/base.cpio" ] && [ "$(cat "$OUT/stamp" 2>/dev/null)" = "$stamp" ]; then echo "$OUT"; exit; fi

# --- the kernel ---------------------------------------------------------------------------------
K=$CACHE/kernels/$KPKG
if [ ! -e "$K/unpacked" ]; then
    rm -rf "$K"; mkdir -p "$K/deb"
    # apt drops privileges for downloads; the sandbox user cannot write here, and that is only a warning.
    (cd "$K/deb" && apt-get -o APT::Sandbox::User=root download "$KPKG" >&2)
    dpkg -x "$K"/deb/*.deb "$K"
    rm -r "$K/deb"
    touch "$K/unpacked"
fi
KVER=$(basename "$K"/boot/vmlinuz-*); KVER=${KVER#vmlinuz-}
[ -f "$K/lib/modules/$KVER/modules.dep" ] || depmod -b "$K" "$KVER"
ln -sf "$K/boot/vmlinuz-$KVER" "$OUT/vmlinuz"

# --- the initramfs tree -------------------------------------------------------------------------
R=$OUT/root; rm -rf "$R" "$OUT/stamp"
mkdir -p "$R"/{bin,sbin,proc,sys,dev,tmp,mnt,run,etc/nvme,lib,lib64,usr/bin,usr/sbin,usr/lib,mods}
cp /bin/busybox "$R/bin/busybox"
"$R/bin/busybox" --list | while read -r a; do [ "$a" = busybox ] || ln -sf busybox "$R/bin/$a"; done

for b in $BINS; do copy_program "$R" "$b" "$b"; done
if [ -f /etc/mke2fs.conf ]; then cp /etc/mke2fs.conf "$R/etc/"; fi
echo 'root:x:0:0:root:/:/bin/sh' >"$R/etc/passwd"
echo 'root:x:0:' >"$R/etc/group"

# Dependencies are read from modules.dep: modprobe --show-depends would leave out what happens to be
# built in to the kernel that this script itself runs under.
add_mod() { # copy a module and its dependencies; print their names in load order
    awk -v want="${1//-/_}" '
        function base(p) { sub(/.*\//, "", p); sub(/\.ko.*/, "", p); gsub(/-/, "_", p); return p }
        { split($0, c, ": *")
          if (base(c[1]) == want) { n = split(c[2], d, " "); for (i = n; i > 0; i--) print d[i]; print c[1]; exit } }' \
        "$K/lib/modules/$KVER/modules.dep" | while read -r path; do
        file=$(basename "$path"); name=${file%%.ko*}
        if [ ! -e "$R/mods/$name.ko" ]; then
            case $file in
            *.xz) xz -dc "$K/lib/modules/$KVER/$path" >"$R/mods/$name.ko" ;;
            *) cp "$K/lib/modules/$KVER/$path" "$R/mods/$name.ko" ;;
            esac
        fi
        echo "$name"
    done
}
for m in $MODS; do add_mod "$m"; done | awk '!seen[$0]++' >"$R/mods/boot.list"
for m in $XMODS; do echo "$m:" $(add_mod "$m"); done >"$R/mods/deps.list"

cp "$HERE/guestlib.sh" "$HERE/guestnode.sh" "$R/"
cat >"$R/init" <<'INIT'
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ TERM=dumb
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/shm; mount -t tmpfs t /dev/shm; mount -t tmpfs t /tmp; mount -t tmpfs t /run
ln -s /proc/self/fd /dev/fd 2>/dev/null
# Kernel messages stay out of the console, where they would cut our lines in two; a panic still shows.
dmesg -n 1; stty -F /dev/ttyS0 -echo
. /guestlib.sh
for m in $(cat /mods/boot.list); do insmod /mods/$m.ko 2>/dev/null; done
ip link set lo up
if [ -e /sys/class/net/eth0 ]; then
    ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2
fi
cat /proc/sys/kernel/random/uuid >/etc/nvme/hostid
echo "nqn.2014-08.org.nvmexpress:uuid:$(cat /etc/nvme/hostid)" >/etc/nvme/hostnqn
echo "GUEST-UP $(uname -r) ($(up)s)"
( . /job.env; . /job.sh ); rc=$?
echo "JOB-RC=$rc ($(up)s)"
sync; poweroff -f
INIT
chmod +x "$R/init"
(cd "$R" && find . | cpio --quiet -o -H newc) >"$OUT/base.cpio"
echo "guest-build: $KPKG, $(wc -w <"$R/mods/boot.list") boot modules, initramfs $(du -m "$OUT/base.cpio" | cut -f1) MiB" >&2
rm -rf "$R"
echo "$stamp" >"$OUT/stamp"
echo "$OUT"
