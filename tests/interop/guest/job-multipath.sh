# guest job: two portals of one subsystem are two paths of one disk (native multipath). Under fio one stops reaching the
# namespace and comes back, then the other, then both at once: I/O goes on without an error, where the states say it should.
# env: TRADDR TRSVCID NQN  [EXTRA] [FIO_S 40]
A=/dev/nvme0n1
portals() { nvme discover -t tcp -a "$TRADDR" -s "$TRSVCID" | sed -n 's/^trsvcid: *//p' | sort -u; }
OTHER=$(portals | grep -vx "$TRSVCID" | head -n 1)
step second-portal-discovered test -n "$OTHER"
must connect connect --ctrl-loss-tmo=60 --reconnect-delay=2 --keep-alive-tmo=30
must connect-second nvme connect -t tcp -a "$TRADDR" -s "$OTHER" -n "$NQN" --keep-alive-tmo=30
must namespace wait_until 20 test -b $A

path_of() { echo "/sys/class/nvme/nvme$1/"nvme0c*n1; }
state_is() { [ "$(cat "$(path_of "$1")/ana_state")" = "$2" ]; }
writes() { awk '{print $5}' "$(path_of "$1")/stat"; }
both_optimized() { state_is 0 optimized && state_is 1 optimized; }
one_disk() { [ "$(ls /sys/class/nvme-subsystem | wc -l)" = 1 ] && [ ! -e /sys/block/nvme1n1 ]; }
must two-paths wait_until 20 both_optimized
step one-disk one_disk

fio_verify $A 48 --time_based --runtime="${FIO_S:-40}" --rate_iops=200 >/tmp/fio.out 2>&1 & FIO=$!
# moves PATH: its writes grow, and those of the other do not (after what was under way)
moves() {
    sleep 1
    _here=$(writes "$1"); _there=$(writes $((1 - $1)))
    sleep 2
    echo "path $1: $_here -> $(writes "$1"), the other: $_there -> $(writes $((1 - $1)))"
    [ "$(writes "$1")" -gt "$_here" ] && [ "$(writes $((1 - $1)))" = "$_there" ]
}
is_written() { [ "$(($(writes 0) + $(writes 1)))" -gt 200 ]; }
must fio-writes wait_until 30 is_written

step ask-first-inaccessible host_do ana 0 inaccessible
step told-first-inaccessible wait_until 10 state_is 0 inaccessible
step io-on-second moves 1
step ask-first-back host_do ana 0 optimized
step told-first-back wait_until 10 state_is 0 optimized
step ask-second-inaccessible host_do ana 1 inaccessible
step told-second-inaccessible wait_until 10 state_is 1 inaccessible
step io-on-first moves 0
step ask-second-non-optimized host_do ana 1 non-optimized
step told-second-non-optimized wait_until 10 state_is 1 non-optimized
step io-prefers-first moves 0

step ask-none host_do ana 0 inaccessible
step ask-none-second host_do ana 1 change
step told-none wait_until 10 state_is 1 change
step ask-second-back host_do ana 1 optimized
step told-second-back wait_until 10 state_is 1 optimized
step io-on-second-again moves 1
step ask-all-back host_do ana 0 optimized
step told-all-back wait_until 10 both_optimized

no_error() { wait $FIO || { cat /tmp/fio.out; return 1; }; }
step fio-without-an-error no_error
trouble() { dmesg | grep -iE 'I/O error|nvme.*(reconnect|timeout|disabling ANA)'; }
refused no-trouble trouble
step disconnect disconnect
finish
