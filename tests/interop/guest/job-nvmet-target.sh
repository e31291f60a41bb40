# guest job: the Linux kernel's own NVMe/TCP target, obeying commands that arrive on the console.
# Namespace 1 is /dev/vda when the caller attached a disk (it then survives a kill of the guest) or RAM.
# env: NQN [RAM_MIB 512] [TLS: TLS alone, with kernel_tls for the handshakes] [PORTS 1: from 4420 on]
# commands: resize NSID MIB | add-namespace NSID MIB | remove-namespace NSID | set-key HOST KEY TARGET-KEY |
#   set-tls-key HOST KEY | ana PORT STATE | listen PORT yes|no | stop
insmod_dep brd rd_nr=1 rd_size=$((${RAM_MIB:-512} * 1024)) max_part=0
insmod_dep nvmet-tcp
mount -t configfs c /sys/kernel/config
N=/sys/kernel/config/nvmet; S=$N/subsystems/$NQN
add_namespace() { # NSID PATH BUFFERED
    mkdir "$S/namespaces/$1" && echo "$3" >"$S/namespaces/$1/buffered_io" &&
        echo "$2" >"$S/namespaces/$1/device_path" &&
        echo "5ca1ab1e-0000-4000-8000-00000000000$1" >"$S/namespaces/$1/device_uuid" && echo 1 >"$S/namespaces/$1/enable"
}
set_key() { # HOST KEY TARGET-KEY: from now on the only host
    mkdir -p "$N/hosts/$1" && echo "$2" >"$N/hosts/$1/dhchap_key" && echo "$3" >"$N/hosts/$1/dhchap_ctrl_key" &&
        echo 'hmac(sha384)' >"$N/hosts/$1/dhchap_hash" && echo ffdhe2048 >"$N/hosts/$1/dhchap_dhgroup" &&
        echo 0 >"$S/attr_allow_any_host" && ln -s "$N/hosts/$1" "$S/allowed_hosts/$1"
}
mkdir "$S"; echo 1 >"$S/attr_allow_any_host"
DEV=/dev/ram0; [ -b /dev/vda ] && DEV=/dev/vda
add_namespace 1 $DEV 0
listen() { # PORT yes|no: a port without subsystems does not listen, and its controllers are gone
    if [ "$2" = yes ]; then ln -s "$S" "$N/ports/$1/subsystems/$NQN"; else rm "$N/ports/$1/subsystems/$NQN"; fi
}
if [ -n "$TLS" ]; then
    for module in gcm ghash-generic tls; do insmod_dep $module; done
    kernel_tls serve &
fi
for port in $(seq "${PORTS:-1}"); do
    mkdir "$N/ports/$port"; cd "$N/ports/$port"
    echo tcp >addr_trtype; echo ipv4 >addr_adrfam; echo 0.0.0.0 >addr_traddr; echo $((4419 + port)) >addr_trsvcid
    [ -z "$TLS" ] || echo tls1.3 >addr_tsas || { dmesg | tail -n 5; echo RESULT FAIL; exit 1; }
    listen "$port" yes || { dmesg | tail -n 5; echo RESULT FAIL; exit 1; }
done
echo "TARGET-READY ($(up)s)"

while read -r verb nsid mib </dev/ttyS0; do
    rc=0
    case $verb in
    # (the file is in a tmpfs, which takes no direct I/O on the older kernel)
    add-namespace) truncate -s "${mib}M" "/tmp/ns$nsid" && add_namespace "$nsid" "/tmp/ns$nsid" 1 || rc=1 ;;
    remove-namespace) echo 0 >"$S/namespaces/$nsid/enable" && rmdir "$S/namespaces/$nsid" && rm "/tmp/ns$nsid" || rc=1 ;;
    resize) truncate -s "${mib}M" "/tmp/ns$nsid" && echo 1 >"$S/namespaces/$nsid/revalidate_size" || rc=1 ;;
    set-key) set_key "$nsid" $mib || rc=1 ;;
    set-tls-key) kernel_tls insert 1 "$nsid" "$NQN" "$mib" || rc=1 ;;
    # (every namespace is in the group that each port has from the beginning)
    ana) echo "$mib" >"$N/ports/$nsid/ana_groups/1/ana_state" || rc=1 ;;
    listen) listen "$nsid" "$mib" || rc=1 ;;
    stop) exit 0 ;;
    *) continue ;;
    esac
    echo "TARGET-DONE $rc"
done
