#!/usr/bin/env python3
"""What watching costs a node: bench/console-cost.py REMUDA [PAIRS]

First the CPU time of the control thread and of the reactor, without load, by how many watch and scrape. Then latencies of a paced load
(4 KiB random reads of a memory volume, 3000 a second) in PAIRS adjacent pairs of runs of 4 s, in one of which nobody looks and in the
other one watches the console and one scrapes /metrics each second; which comes first alternates."""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

NQN = "nqn.2026-11.io.remuda:cost"
CONFIG = f"""
[node]
state_dir = "state"
rpc_socket = "r.sock"
metrics_listen = "127.0.0.1:0"
[nvmf]
listen = ["127.0.0.1:0"]
[[device]]
name = "memory"
kind = "mem"
size = "32MiB"
[[volume]]
name = "v"
device = "memory"
[[subsystem]]
nqn = "{NQN}"
allow_any_host = true
namespaces = ["v"]
"""


class Looking:
    """Watchers and scrapers for as long as the block lasts."""

    def __init__(self, console, watchers, scrapers):
        self.console, self.stop, self.samples, self.scrapes = console, threading.Event(), 0, 0
        self.threads = [threading.Thread(target=self.watch) for _ in range(watchers)]
        self.threads += [threading.Thread(target=self.scrape) for _ in range(scrapers)]

    def get(self, path):
        return urllib.request.urlopen(urllib.request.Request(self.console + path, headers={"X-Remuda": "1"})).read()

    def watch(self):
        after = 0
        while not self.stop.is_set():
            after = json.loads(self.get(f"console/sample?after={after}"))["seq"]
            self.samples += 1

    def scrape(self):
        while not self.stop.is_set():
            self.get("metrics")
            self.scrapes += 1
            self.stop.wait(1)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()


def cpu_ms(pid):
    """CPU time so far of the control thread and of all reactors, in ms."""
    control, reactors = 0.0, 0.0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        ran = int((task / "schedstat").read_text().split()[0]) / 1e6
        if task.name == str(pid):
            control += ran
        elif (task / "comm").read_text().startswith("reactor"):
            reactors += ran
    return control, reactors


def main():
    remuda, pairs = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 10
    with tempfile.TemporaryDirectory() as directory:
        (pathlib.Path(directory) / "node.toml").write_text(CONFIG)
        node = subprocess.Popen([remuda, "serve", "--config", "node.toml"], cwd=directory, stderr=subprocess.DEVNULL)
        try:
            measure(remuda, node, directory, pairs)
        finally:
            node.terminate()
            node.wait()


def measure(remuda, node, directory, pairs):
    command = [remuda, "--socket", f"{directory}/r.sock", "--json", "status"]
    while (status := subprocess.run(command, capture_output=True)).returncode:
        time.sleep(0.05)
    status = json.loads(status.stdout)
    address, port = status["nvmf_listen"][0].rsplit(":", 1)

    print("watchers scrapers  control ms/s  reactor ms/s  samples scrapes")
    for watchers, scrapers in [(0, 0), (1, 0), (16, 0), (0, 1)]:
        with Looking(status["console"], watchers, scrapers) as looking:
            before, began = cpu_ms(node.pid), time.monotonic()
            time.sleep(12)
            seconds = time.monotonic() - began
            control, reactor = ((now - then) / seconds for now, then in zip(cpu_ms(node.pid), before))
            print(f"{watchers:8} {scrapers:8} {control:13.3f} {reactor:13.3f} {looking.samples:8} {looking.scrapes:7}", flush=True)

    load = ["--rw", "randread", "--range", "16MiB", "--qd", "8", "--rate", "3000", "--time", "4s", "--warmup", "500ms"]
    command = [remuda, "--json", "bench", "nvmf", "--addr", address, "--port", port, "--nqn", NQN, *load]
    found = {False: [], True: []}
    for pair in range(pairs):
        for watched in [pair % 2 == 1, pair % 2 == 0]:
            with Looking(status["console"], int(watched), int(watched)):
                found[watched].append(json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["lat_ns"])
    for key in ["p50", "p99", "p999"]:
        one, other = ([run[key] / 1000 for run in found[watched]] for watched in (False, True))
        ratios = sorted(there / here for here, there in zip(one, other))
        print(f"{key}: unwatched {statistics.median(one):.0f} us, watched {statistics.median(other):.0f} us; ratio of pairs "
              f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}), watched was slower in "
              f"{sum(ratio > 1 for ratio in ratios)} of {pairs}")


main()
