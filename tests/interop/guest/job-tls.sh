# guest job: the Linux kernel's host by TLS 1.3 on a node of ours. The keys are in the kernel's keyring and the handshakes are
# carried out by kernel_tls (crates/nvme/examples): no key, wrong keys, no TLS, another host's key; data, a file system and SIGKILLs
# of the target; a key that changes with and without grace; both hashes; identities as older programs make them.
# env: TRADDR TRSVCID (without TLS) NQN, HOST (our NQN), KEY_A KEY_B (SHA-256) KEY_C (SHA-384)  [FIO_MB 16] [KILLS 2]
ID=${HOST##*:}; A=/dev/nvme0n1; SYS=/sys/class/nvme/nvme0; FIO_MB=${FIO_MB:-16}; KILLS=${KILLS:-2}
for module in gcm ghash-generic tls; do insmod_dep $module; done
kernel_tls serve >/tmp/agent 2>&1 &

# (past nvme-cli, which does not know TLS in this version)
connect_to() { # PORT OPTION...: becomes /dev/nvme0
    _all="transport=tcp,traddr=$TRADDR,trsvcid=$1,nqn=$NQN,hostid=$ID,ctrl_loss_tmo=120,reconnect_delay=1,keep_alive_tmo=10"
    shift
    dmesg -c >/dev/null
    echo "$_all$*" >/dev/nvme-fabrics && wait_until 30 test -b $A
}
plain() { connect_to "$1" ",hostnqn=$HOST"; }
by_tls() { connect_to "$TLSPORT" ",hostnqn=$HOST,tls$*"; }
# has KEY [FORM]: the kernel has this key and no other
has() { kernel_tls forget && kernel_tls insert "${2:-1}" "$HOST" "$NQN" "$1"; }
cipher() { tail -n 1 /tmp/agent | grep -q "client, $1, $2"; }
works() {
    drop_caches; test -b $A &&
        dd if=/dev/urandom of=/tmp/block bs=4k count=16 && dd if=/tmp/block of=$A bs=4k oflag=direct &&
        dd if=$A of=/tmp/again bs=4k count=16 iflag=direct && cmp /tmp/block /tmp/again
}
live() { [ "$(cat $SYS/state 2>/dev/null)" = live ]; }
handshakes() { grep -c 'client, ' /tmp/agent; }
# The kernel names the key, and there was a handshake for each of its two queues.
encrypted() { [ -n "$(cat $SYS/tls_key)" ] && [ "$(handshakes)" = $((before + 2)) ]; }

step agent wait_until 10 grep -q ready /tmp/agent
discovered() { nvme discover -t tcp -a "$TRADDR" -s "$TRSVCID" >/tmp/discovered && grep -q 'sectype: *tls13' /tmp/discovered; }
step discovered-tls discovered
TLSPORT=$(sed -n 's/^trsvcid: *//p' /tmp/discovered | grep -vx "$TRSVCID" | head -n 1)

# --- who is refused ------------------------------------------------------------------------------
must ask-key host_do set-tls-key "$HOST" a
refused connect-without-tls plain "$TRSVCID"
refused connect-without-tls-to-tls plain "$TLSPORT"
step log-without-tls host_do log-has 'does not speak TLS'
refused connect-no-key by_tls
has "$KEY_B" >/dev/null
refused connect-wrong-key by_tls
step log-wrong-key host_do log-has "host $HOST offers another TLS key for $NQN"
sleep 1
has "$KEY_B" 0 >/dev/null
refused connect-wrong-key-unnamed by_tls
step log-wrong-key-unnamed host_do log-has "host $HOST does not have the TLS key"
# (the right key, and another name in Connect than in the key)
SERIAL=$(has "$KEY_A")
refused connect-as-another connect_to "$TLSPORT" ",hostnqn=$HOST-2,tls,tls_key=$SERIAL"

# --- data ----------------------------------------------------------------------------------------
before=$(handshakes)
must connect by_tls
step encrypted encrypted
step aes-128 cipher TLS_AES_128_GCM_SHA256 "NVMe1R01 $HOST $NQN"
step works works
step fio-verify fio_verify $A "$FIO_MB" --bsrange=4k-128k --bs_unaligned=0 --blockalign=4k

reconnects() { dmesg | grep -c 'Successfully reconnected'; }
came_back() { [ "$(reconnects)" -gt "$before" ] && live; }
survive() { # COMMAND...: kill the target while it runs
    before=$(reconnects)
    "$@" >/tmp/survive.out 2>&1 & _pid=$!
    sleep 1
    kill -0 $_pid || { cat /tmp/survive.out; echo "ended before the kill"; return 1; }
    host_do restart || return 1
    wait $_pid || { cat /tmp/survive.out; return 1; }
    wait_until 60 came_back
}
for i in $(seq 1 "$KILLS"); do
    step restart-$i-under-fio survive fio_verify $A 32 --time_based --runtime=3 --verify_backlog=1024
done
mkdir -p /mnt/x; : >/tmp/sums
step mkfs mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 $A
must mount mount -t ext4 -o errors=remount-ro $A /mnt/x
step restart-under-ext4 survive write_files 1 30
step sync sync
must umount umount /mnt/x
drop_caches
step fsck e2fsck -fn $A
must mount-again mount -t ext4 -o ro $A /mnt/x
step data-compare compare_files /tmp/sums 30
must umount-again umount /mnt/x
io_errors() { dmesg | grep -E 'I/O error|Buffer I/O|EXT4-fs error'; }
refused no-io-errors io_errors

# --- a key that changes --------------------------------------------------------------------------
reset() { nvme reset /dev/nvme0 && wait_until 30 live; }
step ask-grace host_do set-tls-key "$HOST" c grace
step stays-with-grace works
step reset-with-old-key reset
step works-after-reset works
step disconnect disconnect
has "$KEY_C" >/dev/null
must connect-sha384 by_tls
step aes-256 cipher TLS_AES_256_GCM_SHA384 "NVMe1R02 $HOST $NQN"
step works-sha384 works
step fio-verify-sha384 fio_verify $A 4
step ask-without-grace host_do set-tls-key "$HOST" a
step stays-without-grace works
refused reset-with-revoked-key reset
has "$KEY_A" >/dev/null
step disconnect disconnect

# --- what else a host may offer ------------------------------------------------------------------
must connect-digests by_tls ,hdr_digest,data_digest
step works-digests works
step disconnect disconnect
for form in 0 1-early 0-early; do
    has "$KEY_A" $form >/dev/null
    must connect-form-$form by_tls
    step works-form-$form works
    step disconnect disconnect
done
# (an identity without digest does not say which of two keys it means)
step ask-grace-again host_do set-tls-key "$HOST" b grace
for which in former:$KEY_A new:$KEY_B; do
    has "${which#*:}" 0 >/dev/null
    step connect-unnamed-${which%%:*} by_tls
    step works-unnamed-${which%%:*} works
    step disconnect disconnect
done
cat /tmp/agent
finish
