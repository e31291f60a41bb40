# guest job: reservations between two hosts, both of them the Linux kernel: one connection each, with names of their own.
# They outlive a SIGKILL of the target.
# env: TRADDR TRSVCID NQN

# With multipathing the kernel takes both for paths of one host.
for m in nvme_tcp nvme_fabrics nvme_core; do rmmod $m; done
insmod /mods/nvme-core.ko multipath=N && insmod /mods/nvme-fabrics.ko && insmod /mods/nvme-tcp.ko
A=/dev/nvme0n1; B=/dev/nvme1n1; KEY_A=0xa0; KEY_B=0xb0
ID_A=11111111-1111-1111-1111-111111111111; ID_B=22222222-2222-2222-2222-222222222222

# (nvme-cli takes the second for the first, whatever its name; the kernel does not)
connect_as() { # HOST-ID DEVICE
    _who="hostnqn=nqn.2014-08.org.nvmexpress:uuid:$1,hostid=$1"
    _how="ctrl_loss_tmo=60,reconnect_delay=2,keep_alive_tmo=30"
    echo "transport=tcp,traddr=$TRADDR,trsvcid=$TRSVCID,nqn=$NQN,$_who,$_how" >/dev/nvme-fabrics &&
        wait_until 10 test -b "$2"
}
must connect-a connect_as $ID_A $A
must connect-b connect_as $ID_B $B
field() { nvme "$1" "$2" | sed -n "s/^$3 *: *//p"; }
step oncs test $(($(field id-ctrl /dev/nvme0 oncs) & 32)) != 0
step rescap test $(($(field id-ns $A rescap))) = 255

may_read() { drop_caches; dd if="$1" of=/dev/null bs=4k count=1 iflag=direct; }
may_write() { dd if=/dev/zero of="$1" bs=4k count=1 oflag=direct; }
register() { nvme resv-register "$1" -n 1 --nrkey="$2" --rrega=0 --cptpl="$3"; }
acquire() { nvme resv-acquire "$1" -n 1 --crkey="$2" --prkey="${5:-0}" --rtype="$3" --racqa="$4"; }
release() { nvme resv-release "$1" -n 1 --crkey="$2" --rtype="$3" --rrela="$4"; }
report() { nvme resv-report "$1" -n 1 --eds; }
reported() { # DEVICE WORD VALUE: a line of the report, white space aside
    report "$1" | tee /tmp/report | tr -d ' \t' | grep -qix "$2:$3" || { cat /tmp/report; return 1; }
}
# (by number: this nvme-cli names the types wrongly)
notices() { nvme resv-notif-log "$1" | tee /tmp/notices | tr -d ' \t' | grep -qi "PageType:$2" || { cat /tmp/notices; return 1; }; }

refused acquire-unregistered acquire $A $KEY_A 1 0
step register-a register $A $KEY_A 3
step register-b register $B $KEY_B 0
refused register-other-key register $A 0xa1 0
step acquire-a acquire $A $KEY_A 1 0
refused acquire-b acquire $B $KEY_B 1 0
report $B
step report-type reported $B rtype 1
step report-registrants reported $B regctl 2
step report-persistence reported $B ptpls 1
step write-a may_write $A
step read-b may_read $B
refused write-b may_write $B
refused flush-b nvme flush /dev/nvme1 -n 1
refused release-wrong-key release $A $KEY_B 1 0

# --- a SIGKILL of the target ---------------------------------------------------------------------
step ask-restart host_do restart
live() { [ "$(cat /sys/class/nvme/nvme0/state)$(cat /sys/class/nvme/nvme1/state)" = livelive ]; }
must reconnect wait_until 60 live
step report-type-again reported $A rtype 1
step report-registrants-again reported $A regctl 2
step write-a-again may_write $A
refused write-b-again may_write $B

# --- the other way round -------------------------------------------------------------------------
step preempt-and-abort acquire $B $KEY_B 2 2 $KEY_A
step write-b-now may_write $B
refused write-a-now may_write $A
refused read-a-now may_read $A
step notice-registration-preempted notices /dev/nvme0 1
step no-more-notices notices /dev/nvme0 0
step release-b release $B $KEY_B 2 0
step write-a-released may_write $A
step register-a-anew register $A $KEY_A 0
step acquire-all-registrants acquire $A $KEY_A 6 0
step write-b-registrant may_write $B
step clear release $B $KEY_B 0 1
step report-empty reported $A regctl 0
step write-a-cleared may_write $A
step disconnect disconnect
finish
