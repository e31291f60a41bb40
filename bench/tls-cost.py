#!/usr/bin/env python3
"""What TLS costs: the same loads on one node without TLS and with it, alternating, over loopback.

    bench/tls-cost.py REMUDA [PASSES [SECONDS]]

REMUDA is a release build with the feature `tls`. Starts a node with one reactor on core 0 and a memory device of its own, and loads
it with `remuda bench nvmf` on core 1. Prints a line per load and key: thousand IOPS without and with TLS, as median (lowest to
highest), the ratio of the medians (lowest to highest of the pairs), p50 in us, and processor time per I/O in us, of the node and of
the host, without and with.
"""
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

TICK = os.sysconf("SC_CLK_TCK")
NQN = "nqn.2026-11.io.remuda:bench"
HOSTS = {"": "nqn.2026-11.io.remuda:plain", "128": "nqn.2026-11.io.remuda:aes128", "256": "nqn.2026-11.io.remuda:aes256"}
LOADS = [
    ("randread", "4k", 1, "128"),
    ("randread", "4k", 16, "128"),
    ("randread", "4k", 128, "128"),
    ("randread", "4k", 128, "256"),
    ("randwrite", "4k", 128, "128"),
    ("randread", "128k", 16, "128"),
    ("randwrite", "128k", 16, "128"),
]


def free_port():
    with socket.socket() as listener:
        for port in range(20000 + os.getpid() % 8000, 32768):
            try:
                listener.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass
    raise SystemExit("no free port")


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def start(remuda, directory):
    ports = {"plain": free_port()}
    ports["tls"] = ports["plain"] + 1
    for name, hash_name in (("128", "sha256"), ("256", "sha384")):
        subprocess.run([remuda, "key", "generate", "--tls", "--hash", hash_name, f"{directory}/{name}"], check=True)
    keys = ", ".join(f'{{ host = "{HOSTS[name]}", tls_key = "{directory}/{name}" }}' for name in ("128", "256"))
    hosts = ", ".join(f'"{host}"' for host in HOSTS.values())
    with open(f"{directory}/node.toml", "w") as file:
        file.write(f"""[node]
state_dir = "{directory}/state"
rpc_socket = "{directory}/rpc.sock"
metrics_listen = "off"
reactors = [0]
[nvmf]
listen = ["127.0.0.1:{ports['plain']}"]
listen_tls = ["127.0.0.1:{ports['tls']}"]
[[device]]
name = "d0"
kind = "mem"
size = "512MiB"
block_size = 4096
[[volume]]
name = "v0"
device = "d0"
[[subsystem]]
nqn = "{NQN}"
hosts = [{hosts}]
host_keys = [{keys}]
namespaces = [{{ nsid = 1, volume = "v0" }}]
""")
    log = open(f"{directory}/log", "w")
    node = subprocess.Popen([remuda, "serve", "--config", f"{directory}/node.toml"], stdout=log, stderr=log)
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", ports["tls"])).close()
            return node, ports
        except OSError:
            if node.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(open(f"{directory}/log").read())
            time.sleep(0.05)


def measure(remuda, node, ports, directory, load, seconds, name):
    workload, size, depth, _ = load
    port = ports["tls" if name else "plain"]
    command = ["taskset", "-c", "1", remuda, "bench", "nvmf", "--addr", "127.0.0.1", "--port", str(port), "--nqn", NQN]
    command += ["--host-nqn", HOSTS[name], "--rw", workload, "--bs", size, "--qd", str(depth), "--time", f"{seconds}s"]
    command += ["--tls-key", f"{directory}/{name}"] if name else []
    before = cpu_seconds(node.pid)
    run = json.loads(subprocess.run(command + ["--json"], check=True, stdout=subprocess.PIPE).stdout)
    used = cpu_seconds(node.pid) - before
    return {
        "iops": run["iops"],
        "p50": run["lat_ns"]["p50"] / 1e3,
        "node": used / max(run["ios"], 1) * 1e6,
        "host": run["cpu_ns_per_io"] / 1e3,
    }


def main():
    remuda = sys.argv[1]
    passes = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    seconds = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    with tempfile.TemporaryDirectory(prefix="remuda-tls-cost.") as directory:
        node, ports = start(remuda, directory)
        try:
            # (memory that is touched for the first time is another thing to measure)
            measure(remuda, node, ports, directory, ("write", "128k", 16, ""), 4, "")
            runs = {load: ([], []) for load in LOADS}
            for number in range(passes):
                for load in LOADS:
                    pair = [(0, ""), (1, load[3])]
                    for side, name in pair if number % 2 == 0 else reversed(pair):
                        runs[load][side].append(measure(remuda, node, ports, directory, load, seconds, name))
        finally:
            node.send_signal(signal.SIGTERM)
            node.wait()
    median = lambda side, key: statistics.median(run[key] for run in side)
    print("| load | without, K IOPS | with | ratio | p50, us | node, us per I/O | host, us per I/O |")
    print("|---|---|---|---|---|---|---|")
    for (workload, size, depth, bits), (plain, tls) in runs.items():
        spread = [
            f"{median(side, 'iops') / 1e3:.1f} ({min(run['iops'] for run in side) / 1e3:.1f}-"
            f"{max(run['iops'] for run in side) / 1e3:.1f})"
            for side in (plain, tls)
        ]
        pairs = [with_tls["iops"] / without["iops"] for without, with_tls in zip(plain, tls)]
        ratio = f"{median(tls, 'iops') / median(plain, 'iops'):.2f} ({min(pairs):.2f}-{max(pairs):.2f})"
        beside = [f"{median(plain, key):.1f}, {median(tls, key):.1f}" for key in ("p50", "node", "host")]
        print(f"| {size} {workload}, QD {depth}, AES-{bits} | {' | '.join([*spread, ratio, *beside])} |", flush=True)


main()
