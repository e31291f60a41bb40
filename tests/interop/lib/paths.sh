# Our host with a path to each of two ports of the kernel's target: under verified writes one stops reaching the namespace and
# comes back, one is not optimized, one stops listening and listens again. Expects: INTEROP, INTEROP_DIR, NVMET_KERNEL.
paths() { # SECONDS: prints its steps
    local W=$INTEROP_DIR/remuda node=$INTEROP/targets/remuda nvmet=$INTEROP/targets/nvmet port first second nqn bench failed=
    step() { # NAME COMMAND...
        local name=$1; shift
        if "$@"; then echo "STEP $name: ok"; else echo "STEP $name: FAIL"; failed=1; fi
    }
    state_is() { [ "$(node_path_state "$1")" = "$2" ]; } # PORT STATE
    is_lost() { wait_until 20 has_no_controller "$1"; }
    has_no_controller() { [ "$(node_path "$1" connected)" = false ]; }
    comes_to() { wait_until 20 state_is "$@"; }
    # moves_to PORT OTHER: it is sent operations, and the other none, before long (what was under way is counted when it ends)
    moves_to() { for _ in $(seq 10); do ! has_moved_to "$@" || return 0; done; return 1; }
    has_moved_to() {
        local here there
        here=$(node_path_operations "$1"); there=$(node_path_operations "$2")
        sleep 2
        echo "127.0.0.1:$1: $here -> $(node_path_operations "$1"), the other: $there -> $(node_path_operations "$2")"
        [ "$(node_path_operations "$1")" -gt "$here" ] && [ "$(node_path_operations "$2")" = "$there" ]
    }
    without_an_error() { wait "$bench" || { cat "$INTEROP_DIR/bench"; return 1; }; }

    read -r first nqn < <("$nvmet" address)
    first=${first#*:}; second=$("$nvmet" second-port)
    rm -rf "${W:?}"
    POOL=paths FAR_NQN=$nqn FAR_PORTS="$first $second" "$node" start || return 1
    read -r port nqn < <("$node" address)
    step paths-first comes_to "$first" optimized
    step paths-second comes_to "$second" optimized
    host_bench 127.0.0.1 "${port#*:}" "$nqn" "$1" >"$INTEROP_DIR/bench" 2>&1 & bench=$!

    step paths-ask-first-inaccessible "$nvmet" ana 1 inaccessible
    step paths-told-first-inaccessible comes_to "$first" inaccessible
    step paths-io-on-second moves_to "$second" "$first"
    step paths-ask-first-back "$nvmet" ana 1 optimized
    step paths-told-first-back comes_to "$first" optimized
    step paths-ask-second-non-optimized "$nvmet" ana 2 non-optimized
    step paths-told-second-non-optimized comes_to "$second" non-optimized
    step paths-io-prefers-first moves_to "$first" "$second"
    step paths-ask-first-change "$nvmet" ana 1 change
    step paths-told-first-change comes_to "$first" change
    step paths-io-on-non-optimized moves_to "$second" "$first"
    step paths-ask-first-optimized "$nvmet" ana 1 optimized
    step paths-io-on-first moves_to "$first" "$second"

    step paths-first-stops-listening "$nvmet" listen 1 no
    step paths-told-first-gone is_lost "$first"
    step paths-io-without-first moves_to "$second" "$first"
    step paths-first-listens "$nvmet" listen 1 yes
    step paths-first-connected comes_to "$first" optimized
    step paths-io-on-first-again moves_to "$first" "$second"
    step paths-bench-without-an-error without_an_error
    [ -z "$failed" ] || "$node" log
    step paths-node-stops "$node" stop
    [ -z "$failed" ]
}
