# guest job: namespaces that come, grow and go while the host is connected and working on another one.
# The kernel learns of each change by an asynchronous event alone: nothing here asks for a rescan.
# env: TRADDR TRSVCID NQN  [EXTRA] [SIZE_MIB 64] [GROWN_MIB 128] [NSID2 2]
A=/dev/nvme0n1; N=${NSID2:-2}; B=/dev/nvme0n$N; SIZE=${SIZE_MIB:-64}; GROWN=${GROWN_MIB:-128}
# (events do not wait for keep-alives; an emulated machine may stall longer than the default of 5 s)
must connect connect --ctrl-loss-tmo=30 --reconnect-delay=2 --keep-alive-tmo=30
must namespace wait_until 10 test -b $A

appears() { wait_until 20 test -b $B; }
has_mib() { [ "$(sectors $B)" = $(($1 * 2048)) ]; }
vanishes() { wait_until 20 test ! -e "/sys/block/${B#/dev/}"; }
data_compare() { (cd /mnt/x && sha256sum -c -s /tmp/sums); }

# The neighbour works through all of it.
fio_verify $A 64 --time_based --runtime="${FIO_S:-20}" --rate_iops=500 >/tmp/neighbour.out 2>&1 & NEIGHBOUR=$!

mkdir -p /mnt/x
step ask-add host_do add-namespace $N $SIZE
must appears appears
step size-$SIZE wait_until 20 has_mib $SIZE
step mkfs mkfs.ext4 -q -F $B
must mount mount -t ext4 $B /mnt/x
cp -a /mods /mnt/x/; sync; (cd /mnt/x && find mods -type f | xargs sha256sum >/tmp/sums)

step ask-grow host_do resize $N $GROWN
must size-$GROWN wait_until 20 has_mib $GROWN
step resize2fs-mounted resize2fs $B
step bigger-fs test "$(df -m /mnt/x | awk 'END {print $2}')" -gt $((SIZE + (GROWN - SIZE) / 2))
fill() { dd if=/dev/urandom of=/mnt/x/new bs=1M count=$((SIZE + 8)) conv=fsync && sha256sum /mnt/x/new >>/tmp/sums; }
step write-new-part fill
must umount umount /mnt/x
drop_caches
step fsck e2fsck -fn $B
must mount-again mount -t ext4 -o ro $B /mnt/x
step data-compare data_compare
must umount-again umount /mnt/x

step ask-remove host_do remove-namespace $N
must vanishes vanishes
step ask-add-again host_do add-namespace $N $SIZE
must appears-again appears
step size-again wait_until 20 has_mib $SIZE
step new-namespace-io fio_verify $B 8
step ask-remove-again host_do remove-namespace $N
step vanishes-again vanishes

neighbour() { wait $NEIGHBOUR || { cat /tmp/neighbour.out; return 1; }; }
step neighbour-undisturbed neighbour
reconnected() { dmesg | grep -iE 'nvme.*(reconnect|timeout)'; }
refused no-reconnect reconnected
step disconnect disconnect
finish
