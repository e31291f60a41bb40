# Shared by `run` and the targets. Everything a run makes is under $INTEROP_DIR, the caller's.
INTEROP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
REPO=$(cd "$INTEROP/../.." && pwd)
GUEST_SH=$INTEROP/guest

die() { echo "interop: $*" >&2; exit 1; }

free_port() { # a loopback port that nobody listens on, below the range the kernel hands out by itself
    local port
    for _ in $(seq 200); do
        port=$((20000 + RANDOM % 12000))
        if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then echo "$port"; return; fi
    done
    die "no free port found"
}

wait_until() { # SECONDS command...: poll until it succeeds
    local deadline=$((SECONDS + $1)); shift
    until "$@"; do
        [ $SECONDS -lt $deadline ] || { echo "interop: timeout waiting for: $*" >&2; return 1; }
        sleep 0.1
    done
}

alive() { kill -0 "$1" 2>/dev/null; }
# (bash can only be told of its own children: others are polled)
gone() { ! alive "$1" || [ "$(sed 's/.*) //; s/ .*//' "/proc/$1/stat" 2>/dev/null)" = Z ]; }

stop_pid() { # PIDFILE [SIGNAL]: end that process and wait; nothing to do when it never started
    local pid
    [ -s "$1" ] || return 0
    pid=$(<"$1")
    rm -f "$1"
    alive "$pid" || return 0
    kill -"${2:-TERM}" "$pid" 2>/dev/null || true
    wait_until 20 gone "$pid" || { kill -KILL "$pid"; wait_until 5 gone "$pid"; return 1; }
}
