# guest job: DH-HMAC-CHAP between the Linux kernel and the target: with and without key, wrong keys, both directions, other
# hashes and groups, authenticating again on a live association, a key that changes, a SIGKILL of the target.
# env: TRADDR TRSVCID NQN, HOST (our NQN), KEY_A KEY_B (the host's keys), KEY_NODE (the target's)
ID=${HOST##*:}; A=/dev/nvme0n1; SYS=/sys/class/nvme/nvme0

# (past nvme-cli, whose version decides what it passes on)
connect_with() { # OPTION...: becomes /dev/nvme0
    _how="ctrl_loss_tmo=120,reconnect_delay=1,keep_alive_tmo=30"
    _all="transport=tcp,traddr=$TRADDR,trsvcid=$TRSVCID,nqn=$NQN,hostnqn=$HOST,hostid=$ID,$_how$*"
    echo "$_all" >/dev/nvme-fabrics && wait_until 30 test -b $A
}
key() { printf ',dhchap_secret=%s' "$1"; }
ctrl_key() { printf ',dhchap_ctrl_secret=%s' "$1"; }
works() {
    drop_caches
    dd if=/dev/urandom of=/tmp/block bs=4k count=16 && dd if=/tmp/block of=$A bs=4k oflag=direct &&
        dd if=$A of=/tmp/again bs=4k count=16 iflag=direct && cmp /tmp/block /tmp/again
}
state() { cat $SYS/state 2>/dev/null; }
live() { [ "$(state)" = live ]; }
again() { # KEY: the kernel authenticates every queue anew, in the background
    dmesg -c >/dev/null
    echo "$1" >$SYS/dhchap_secret
    wait_until 60 has_authenticated
}
has_authenticated() { dmesg | grep -q 're-authenticating' && [ "$(dmesg | grep -c 'authenticated')" -ge 2 ]; }
not_live() { ! live; }

must connect-without-key connect_with
step disconnect disconnect
must ask-key host_do set-key "$HOST" a node
refused connect-no-key connect_with
refused connect-wrong-key connect_with "$(key "$KEY_B")"
refused connect-wrong-target-key connect_with "$(key "$KEY_A")$(ctrl_key "$KEY_B")"
must connect-one-way connect_with "$(key "$KEY_A")"
step works-one-way works
step disconnect disconnect
must connect-both-ways connect_with "$(key "$KEY_A")$(ctrl_key "$KEY_NODE")"
step works-both-ways works

# --- authenticating again ------------------------------------------------------------------------
step authenticate-again again "$KEY_A"
step still-live live
step works-again works

# --- another key -----------------------------------------------------------------------------------
step ask-other-key host_do set-key "$HOST" b node
step association-stays live
step works-after-change works
step authenticate-with-new again "$KEY_B"
step live-with-new live
step works-with-new works
step ask-restart host_do restart
must reconnects wait_until 90 live
step works-after-restart works
echo "$KEY_A" >$SYS/dhchap_secret
step old-key-ends-it wait_until 60 not_live
echo "$KEY_B" >$SYS/dhchap_secret
step disconnect disconnect
step ask-grace host_do set-key "$HOST" a node grace
must connect-old-key connect_with "$(key "$KEY_B")"
step works-old-key works
step disconnect disconnect
must connect-new-key connect_with "$(key "$KEY_A")"
step disconnect disconnect

# --- hashes and groups -------------------------------------------------------------------------------
for how in sha256:null sha384:ffdhe2048 sha512:ffdhe4096; do
    step "ask-$how" host_do set-key "$HOST" a node "${how%:*}" "${how#*:}"
    must "connect-$how" connect_with "$(key "$KEY_A")$(ctrl_key "$KEY_NODE")"
    step "works-$how" works
    step disconnect disconnect
done
finish
