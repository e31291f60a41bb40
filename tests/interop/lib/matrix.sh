# What was found, kept in the repository: a file for each job and kernel, and the page that is made of them.
# Expects: INTEROP, REPO.
RESULTS_DIR=$INTEROP/results

# record JOB KERNEL STATUS CONSOLE: what the guest was, how it ended, and each step (the console need not be there)
record() {
    local file=$RESULTS_DIR/$2/${1// /-}
    mkdir -p "$RESULTS_DIR/$2"
    {
        if [ "$3" = 0 ]; then echo "result ok"; else echo "result FAILED"; fi
        # (of a job without a guest, on the kernel that is here)
        [ "$2" != local ] || echo "kernel $(uname -r | cut -d- -f1)"
        [ ! -e "$4" ] || sed -n -e '/^STEP connect: ok (SPDK/{h; s/.*(\(.*\))/peer \1/p; g}' -e 's/^GUEST-UP \([^ ]*\).*/kernel \1/p' \
            -e 's/^STEP \([^ ]*\): \(ok\|refused\|FAIL\).*/step \1 \2/p' "$4"
    } >"$file"
}
# record_versions: of what the guests are made
record_versions() {
    dpkg-query -W -f '${Package} ${Version}\n' nvme-cli qemu-system-x86 fio util-linux >"$RESULTS_DIR/versions"
}

# One table of jobs, one of the steps of some of them; rows in the order of the newer kernel's.
matrix() {
    local kernels=(6.12 6.1) kernel job
    kernel_of() { sed -n 's/^kernel //p' "$RESULTS_DIR/$1"/* | sort -u | paste -sd' '; }
    cell() { # KERNEL JOB: ok and how many steps
        local file=$RESULTS_DIR/$1/$2 steps
        if [ ! -e "$file" ]; then echo "not run"; return; fi
        steps=$(grep -c '^step ' "$file" || true)
        echo "$(sed -n 's/^result //p' "$file")$([ "$steps" = 0 ] || echo ", $steps steps")"
    }
    step_cell() { # KERNEL JOB STEP
        local word
        word=$(sed -n "s/^step $3 //p" "$RESULTS_DIR/$1/$2" 2>/dev/null | tail -n 1)
        case $word in '') echo "not run" ;; FAIL) echo FAILED ;; *) echo "$word" ;; esac
    }
    steps_of() { # JOB PATTERN: its rows
        local step
        sed -n "s/^step \($2\) .*/\1/p" "$RESULTS_DIR/6.12/$1" | awk '!seen[$0]++' | while read -r step; do
            echo "| \`$step\` | $(step_cell 6.12 "$1" "$step") | $(step_cell 6.1 "$1" "$step") |"
        done
    }
    # Our host on targets: the kernel's, and others that have results.
    peers() {
        local file=$RESULTS_DIR/spdk/host-spdk step
        [ -e "$file" ] || return 0
        printf '%s\n' "## Our host on targets of others" '' \
            "Linux nvmet: \`host\`, \`authentication-host\` and \`tls-host\` above. $(sed -n 's/^peer //p' "$file" | head -n 1)" \
            "(TCP; devices in its memory, for \`restart\` on files; not run in CI, which has no SPDK): $(cell spdk host-spdk)." '' \
            '| step | SPDK |' '|---|---|'
        sed -n 's/^step \([^ ]*\) .*/\1/p' "$file" | awk '!seen[$0]++' | while read -r step; do
            echo "| \`$step\` | $(step_cell spdk host-spdk "$step") |"
        done
        echo
    }
    # What runs on the kernel of the machine itself.
    without_a_guest() {
        [ ! -e "$RESULTS_DIR/local/zram" ] ||
            echo "\`zram\` has no guest: a node on zram devices of a machine with Linux $(kernel_of local): $(cell local zram)."
    }
    cat <<PAGE
# Interop matrix

Made by \`cargo xtask interop --matrix\` of the results that \`cargo xtask interop --record\` keeps in \`tests/interop/results\`; not
edited by hand. What each job does: [tests/interop/README.md](../tests/interop/README.md).

Kernels: $(for kernel in "${kernels[@]}"; do printf '%s ' "$(kernel_of "$kernel")"; done)(Debian's packages, in QEMU). Programs:
$(paste -sd, "$RESULTS_DIR/versions" | sed 's/,/, /g').

## Jobs

| job | Linux 6.12 | Linux 6.1 |
|---|---|---|
PAGE
    for job in $(ls "$RESULTS_DIR"/6.12 "$RESULTS_DIR"/6.1 | grep -v ':$' | sort -u); do
        echo "| $job | $(cell 6.12 "$job") | $(cell 6.1 "$job") |"
    done
    cat <<PAGE

\`host\` is our host on the kernel's target, with a path to each of two of its ports, \`authentication-host\` and \`tls-host\` too; \`pmem\` is a node in the guest under our own host, \`zoned-drive\` one under the kernel's, on drives of the guest, \`vhost\` a volume as QEMU's disk, \`vhost-boot\` one that a guest starts from; in the others the kernel's host works on our target.
6.1 cannot authenticate hosts, and has no TLS. The \`power-mutations\` are ok when what a device forgot is missed; a full run has them
with the newer kernel alone. \`streams\` wants a QEMU and a kernel that are newer than Debian 12's.
$(without_a_guest)

$(peers)

## Subcommands of nvme-cli

\`ok\`: carried out, with the right data or answer. \`refused\`: the target does not offer it, or the request is wrong, and says so.

| step | Linux 6.12 | Linux 6.1 |
|---|---|---|
PAGE
    steps_of nvme-cli '[^ ]*'
    steps_of zoned 'zns-[^ ]*'
}
