# guest job: the subcommands of nvme-cli that a target of ours is asked by, each with what is right for it: an answer that holds what it
# has to, or a refusal where the target offers no such thing. Destroys the namespace's contents.
# env: TRADDR TRSVCID NQN  [EXTRA]
D=/dev/nvme0n1; C=/dev/nvme0
must connect connect --ctrl-loss-tmo=30 --reconnect-delay=2 --keep-alive-tmo=30
must namespace wait_until 10 test -b $D
LBS=$(queue $D logical_block_size)

# says NAME PATTERN SUBCOMMAND...: it succeeds, and says what it has to
says() {
    _said=$1; _pattern=$2; shift 2
    step "$_said" says_it "$_pattern" "$@"
}
says_it() { _pattern=$1; shift; nvme "$@" >/tmp/said 2>&1 && grep -qi -e "$_pattern" /tmp/said || { cat /tmp/said; return 1; }; }
# no NAME ARG...: the target has no such thing, and says so
no() { _no=$1; shift; refused "$_no" nvme "$_no" "$@"; }

# --- identify -------------------------------------------------------------------------------------
says id-ctrl "^subnqn *: *$NQN" id-ctrl $C
says id-ns "^nsze *: *0x" id-ns $D
says nvm-id-ctrl "vsl" nvm-id-ctrl $C
says nvm-id-ns "lbstm" nvm-id-ns $D
says cmdset-ind-id-ns "nmic" cmdset-ind-id-ns $D -n 1
says id-iocs "Combination" id-iocs $C
says ns-descs "uuid" ns-descs $D
says list-ns "0:0x1\|0\]:0x1" list-ns $C
says get-ns-id "1$" get-ns-id $D
says list "$D" list
says list-subsys "NQN=$NQN" list-subsys
says show-topology "$NQN" show-topology
no list-ctrl $C
no id-ns-granularity $C
no id-nvmset $C
no id-uuid $C
no id-domain $C
no list-endgrp $C
no primary-ctrl-caps $C
no list-secondary $C

# --- log pages ------------------------------------------------------------------------------------
says smart-log "critical_warning[[:space:]]*: 0" smart-log $C
says error-log "Error Log Entries\|error_count" error-log $C
says fw-log "afi *: *0x1" fw-log $C
step effects-log nvme effects-log $C
step changed-ns-list-log nvme changed-ns-list-log $C
says ana-log "optimized" ana-log $C
says supported-log-pages "0x2\|SMART" supported-log-pages $C
says resv-notif-log "Page Type[[:space:]]*: 0" resv-notif-log $C
says get-log "0000:" get-log $C -i 2 -l 512
no self-test-log $C
no endurance-log $C -g 1
no persistent-event-log $C -a 0
no sanitize-log $C
no boot-part-log $C -f /tmp/boot
no telemetry-log $C -o /tmp/telemetry
no lba-status-log $C
no media-unit-stat-log $C

# --- features -------------------------------------------------------------------------------------
for f in 0x01 0x02 0x04 0x05 0x06 0x07 0x0a 0x0b 0x0e 0x0f 0x16; do
    says get-feature-$f "get-feature:$f" get-feature $C -f $f
done
says get-feature-0x81 "get-feature:0x81" get-feature $C -f 0x81 -c 1 -l 16
says get-feature-0x82 "get-feature:0x82" get-feature $D -f 0x82 -n 1
says get-feature-0x83 "get-feature:0x83" get-feature $D -f 0x83 -n 1
says set-feature "set-feature:0x05" set-feature $C -f 5 -v 3
refused get-feature-0x08 nvme get-feature $C -f 8
refused get-feature-0x10 nvme get-feature $C -f 0x10

# --- data -----------------------------------------------------------------------------------------
BYTES=$((LBS * 8))
head -c $BYTES /dev/urandom >/tmp/a; head -c $BYTES /dev/urandom >/tmp/other
range() { echo "-s $1 -c 7 -z $BYTES"; }
reads_back() { nvme read $D $(range "$1") -d /tmp/b && cmp /tmp/a /tmp/b; }
zeroes() { nvme read $D $(range "$1") -d /tmp/b && [ "$(tr -d '\0' </tmp/b | wc -c)" = 0 ]; }
differs() { nvme compare $D $(range 0) -d /tmp/other >/tmp/said 2>&1; [ $? != 0 ] && grep -qi compare /tmp/said; }
step write nvme write $D $(range 0) -d /tmp/a
step read reads_back 0
step compare nvme compare $D $(range 0) -d /tmp/a
step compare-differs differs
step verify nvme verify $D -s 0 -c 7
refused verify-past-end nvme verify $D -s $(($(sectors $D) * 512 / LBS)) -c 7
copied() { nvme copy $D -d 64 -s 0 -b 7 && reads_back 64; }
step copy copied
copied_ranges() { nvme copy $D -d 128 -s 0,4 -b 3,3 && reads_back 128; }
step copy-of-ranges copied_ranges
write_zeroes() { nvme write-zeroes $D -s 64 -c 7 && zeroes 64; }
step write-zeroes write_zeroes
deallocate() { nvme dsm $D -n 1 -d -s 128 -b 8 && zeroes 128; }
step dsm deallocate
step flush nvme flush $D -n 1
if [ $(($(nvme id-ctrl $C | sed -n 's/^oncs *: *//p') & 2)) != 0 ]; then
    uncorrectable() { nvme write-uncor $D -s 8 -c 7 && ! nvme read $D $(range 8) -d /tmp/b && nvme write $D $(range 8) -d /tmp/a && reads_back 8; }
    step write-uncor uncorrectable
else
    no write-uncor $D -s 8 -c 7
fi
no get-lba-status $D -s 0 -m 0x1000 -a 0x10 -l 1

# --- reservations ---------------------------------------------------------------------------------
step resv-register nvme resv-register $D -n 1 --nrkey=0xa0 --rrega=0
step resv-acquire nvme resv-acquire $D -n 1 --crkey=0xa0 --rtype=1 --racqa=0
says resv-report "regctl *: *1" resv-report $D -n 1 --eds
step resv-release nvme resv-release $D -n 1 --crkey=0xa0 --rtype=1 --rrela=0
step resv-unregister nvme resv-register $D -n 1 --crkey=0xa0 --rrega=1

# --- the controller -------------------------------------------------------------------------------
says get-property-cap "0x\|cap" get-property $C -o 0
# (show-regs of nvme-cli 2.3 fails on every fabric, the kernel's own target included)
says get-property "0x14\|property" get-property $C -o 0x14
step ns-rescan nvme ns-rescan $C
live() { [ "$(cat /sys/class/nvme/nvme0/state)" = live ]; }
reset() { nvme reset $C && wait_until 20 live; }
step reset reset
no subsystem-reset $C
no create-ns $C -s 1000 -c 1000 -f 0
no attach-ns $C -n 1 -c 1
no detach-ns $C -n 1 -c 1
no delete-ns $C -n 9
no format $D -l 0 --force
no sanitize $C -a 2
head -c 4096 /dev/zero >/tmp/fw
no fw-download $C -f /tmp/fw
no fw-commit $C -s 1 -a 1
no device-self-test $C -s 1
no security-recv $C -p 0 -x 512 -t 512
no dir-receive $C -D 0 -O 1 -l 4096
no virt-mgmt $C -c 1 -a 7
no lockdown $C -o 1 -p 1 -f 0
no capacity-mgmt $C -O 0
no io-mgmt-recv $D -n 1 -m 1 -l 64
step admin-passthru nvme admin-passthru $C --opcode=6 --cdw10=1 --data-len=4096 -r
step io-passthru nvme io-passthru $D --opcode=0 --namespace-id=1

# --- fabrics --------------------------------------------------------------------------------------
step disconnect disconnect
says discover "subnqn: *$NQN" discover -t tcp -a "$TRADDR" -s "$TRSVCID"
# (connect-all would go where the discovery log says, which is an address outside)
finish
