# guest job: xfs and ext4 on the namespace, each with a copied tree, unmounted, checked and compared.
# env: TRADDR TRSVCID NQN  [EXTRA] [NSID 1] [FILESYSTEMS "xfs ext4"] [FIO_MB 16] [TREE directories]
NSID=${NSID:-1}; D=/dev/nvme0n$NSID
insmod_dep xfs
must connect connect --ctrl-loss-tmo=30 --reconnect-delay=2 --keep-alive-tmo=30
must namespace wait_until 10 test -b "$D"

# A tree with what trees have: programs and libraries, links of both kinds, many small files, deep
# directories, odd names, holes.
copy_tree() { # DIR
    mkdir -p "$1/copy" "$1/made" && cp -a ${TREE:-/bin /sbin /etc /mods /usr/lib/x86_64-linux-gnu /usr/sbin} "$1/copy/" || return 1
    cd "$1/made" || return 1
    for i in $(seq 1 20); do
        mkdir -p "d$i/x/y/z" || return 1
        for j in $(seq 1 20); do echo "file $i $j" >"d$i/f$j" || return 1; done
        ln "d$i/f1" "d$i/hard"; ln -s "../d$i/f2" "d$i/soft"
    done
    touch empty "a name with spaces" && chmod 0000 empty && dd if=/mods/xfs.ko of=holes bs=4k seek=1000 count=3 2>/dev/null
    cd / && sync
}
check_xfs() { xfs_repair -n "$D"; }
check_ext4() { e2fsck -fn "$D"; }
make_xfs() { mkfs.xfs -q -f "$D"; }
make_ext4() { mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$D"; }

mkdir -p /mnt/x
contents() { tree_sums /mnt/x >/tmp/sums.after && cmp /tmp/sums /tmp/sums.after; }
names() { tree_names /mnt/x >/tmp/names.after && cmp /tmp/names /tmp/names.after; }
for fs in ${FILESYSTEMS:-xfs ext4}; do
    must $fs-mkfs make_$fs
    must $fs-mount mount -t $fs "$D" /mnt/x
    step $fs-copy-tree copy_tree /mnt/x
    step $fs-fio-verify fio_verify /mnt/x/fio "${FIO_MB:-16}" --fsync=32
    rm -f /mnt/x/fio
    tree_sums /mnt/x >/tmp/sums; tree_names /mnt/x >/tmp/names
    echo "  $(wc -l </tmp/names) names, $(du -sm /mnt/x | cut -f1) MiB"
    if [ "$(queue "$D" discard_max_bytes)" -gt 0 ]; then step $fs-trim fstrim /mnt/x; fi
    must $fs-umount umount /mnt/x
    drop_caches
    step $fs-check check_$fs
    must $fs-mount-again mount -t $fs "$D" /mnt/x
    step $fs-contents contents
    step $fs-names names
    step $fs-original diff -r /mods /mnt/x/copy/mods
    must $fs-umount-again umount /mnt/x
    step $fs-check-again check_$fs
done
step disconnect disconnect
finish
