#!/usr/bin/env python3
"""What watching costs a node, and whether its hosts feel it: bench/watch-cost.py REMUDA [SECONDS 60] [DEPTHS 1,32] [none|cpu]

With `cpu`, no load: CPU time of the control thread and of the reactor, by how many watch and scrape. Otherwise one run of 4 KiB random reads over NVMe/TCP for each depth, from a memory volume. The clock is cut into spans of a second, in every
other one of which the node is watched: /metrics is scraped at its beginning, and a browser's console polls all through it. Both
sides come from the same run (`remuda bench --spans`). Printed for p50, p99 and p99.9: all unwatched spans, all watched ones, the
ratio of these, and of each watched span to the mean of its two neighbours: median, quartiles, and in how many it is above one.

With `none`, nobody watches in either: what the same comparison gives by chance.

The node is on core 0 and the load on core 1; who watches is on core 1 as well, at a lower priority, since its own time is not the
node's. Wants root or CAP_SYS_NICE for priorities; without, all are equal."""

import http.client
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

NQN = "nqn.2026-11.io.remuda:watched"
SPAN_S = 1.0
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
size = "256MiB"
[[volume]]
name = "v"
device = "memory"
[[subsystem]]
nqn = "{NQN}"
allow_any_host = true
namespaces = ["v"]
"""


def span_now():
    return int(time.clock_gettime(time.CLOCK_MONOTONIC) / SPAN_S)


def sleep_until(span, after_s=0.0):
    time.sleep(max(0.0, span * SPAN_S + after_s - time.clock_gettime(time.CLOCK_MONOTONIC)))


class Watching:
    """Consoles and scrapers, in odd spans or all the time."""

    def __init__(self, console, watchers=1, scrapers=1, always=False):
        self.host, self.always = console.removeprefix("http://").strip("/"), always
        self.stop, self.scrapes, self.samples, self.bytes = threading.Event(), 0, 0, 0
        self.threads = [threading.Thread(target=self.watch) for _ in range(watchers)]
        self.threads += [threading.Thread(target=self.scrape) for _ in range(scrapers)]

    def is_due(self):
        return self.always or span_now() % 2 == 1

    def get(self, connection, path):
        connection.request("GET", path, headers={"X-Remuda": "1"})
        body = connection.getresponse().read()
        self.bytes += len(body)
        return body

    def scrape(self):
        connection = http.client.HTTPConnection(self.host)
        while not self.stop.is_set():
            sleep_until(span_now() + 1, 0.05)
            if self.is_due() and not self.stop.is_set():
                self.get(connection, "/metrics")
                self.scrapes += 1

    def watch(self):
        connection, after = http.client.HTTPConnection(self.host), 0
        while not self.stop.is_set():
            if not self.is_due():
                sleep_until(span_now() + 1)
                continue
            after = json.loads(self.get(connection, f"/console/sample?after={after}"))["seq"]
            self.samples += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()


def pinned(core, nice):
    """What a child does before it begins."""

    def prepare():
        os.sched_setaffinity(0, {core % os.cpu_count()})
        try:
            os.setpriority(os.PRIO_PROCESS, 0, nice)
        except PermissionError:
            pass

    return prepare


def main():
    remuda = pathlib.Path(sys.argv[1]).resolve()
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    depths = sys.argv[3].split(",") if len(sys.argv) > 3 else ["1", "32"]
    mode = sys.argv[4] if len(sys.argv) > 4 else "odd"
    os.sched_setaffinity(0, {1 % os.cpu_count()})
    with tempfile.TemporaryDirectory() as directory:
        (pathlib.Path(directory) / "node.toml").write_text(CONFIG)
        command = [remuda, "serve", "--config", "node.toml"]
        node = subprocess.Popen(command, cwd=directory, stderr=subprocess.DEVNULL, preexec_fn=pinned(0, -10))
        try:
            status = wait_for(remuda, directory)
            if mode == "cpu":
                measure_cpu(status, node.pid, seconds)
            else:
                for depth in depths:
                    measure(remuda, status, seconds, depth, mode != "none")
        finally:
            node.terminate()
            node.wait()


def wait_for(remuda, directory):
    """The node's status, once it answers."""
    command = [remuda, "--socket", f"{directory}/r.sock", "--json", "status"]
    while (status := subprocess.run(command, capture_output=True)).returncode:
        time.sleep(0.05)
    return json.loads(status.stdout)


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


def measure_cpu(status, pid, seconds):
    print("watchers scrapers  control ms/s  reactor ms/s  samples scrapes")
    for watchers, scrapers in [(0, 0), (1, 0), (16, 0), (0, 1)]:
        with Watching(status["console"], watchers, scrapers, always=True) as watching:
            before, began = cpu_ms(pid), time.monotonic()
            time.sleep(seconds)
            took_s = time.monotonic() - began
            control, reactor = ((now - then) / took_s for now, then in zip(cpu_ms(pid), before))
            print(f"{watchers:8} {scrapers:8} {control:13.3f} {reactor:13.3f} {watching.samples:8} {watching.scrapes:7}", flush=True)


def measure(remuda, status, seconds, depth, watched):
    address, port = status["nvmf_listen"][0].rsplit(":", 1)
    load = ["--rw", "randread", "--qd", depth, "--time", f"{seconds}s", "--warmup", "1s", "--spans", f"{SPAN_S * 1000:.0f}ms"]
    command = [remuda, "--json", "bench", "nvmf", "--addr", address, "--port", port, "--nqn", NQN, *load]
    sleep_until(span_now() + 1)
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=pinned(1, -9)) as load:
        if watched:
            with Watching(status["console"]) as watching:
                report = json.loads(load.stdout.read())
            note = f"{watching.scrapes} scrapes, {watching.samples} samples, {watching.bytes >> 10} KiB"
        else:
            report, note = json.loads(load.stdout.read()), "nobody watched: by chance"
    spans = report["spans"][1:-1]
    print(f"QD {depth}: {report['iops'] / 1000:.1f} K IOPS, {len(spans)} spans, {note}")
    even, odd = (side["lat_ns"] for side in report["even_and_odd_spans"])
    for key, name in [("p50", "p50"), ("p99", "p99"), ("p999", "p99.9")]:
        ratios = []
        for before, span, after in zip(spans, spans[1:], spans[2:]):
            if span["span"] % 2:
                beside = (before["lat_ns"][key] + after["lat_ns"][key]) / 2
                ratios.append(span["lat_ns"][key] / max(beside, 1))
        quartiles = statistics.quantiles(ratios, n=4)
        print(f"  {name:6} {even[key] / 1000:8.1f} us  watched {odd[key] / 1000:8.1f} us  ratio {odd[key] / max(even[key], 1):.2f}; of spans "
              f"{quartiles[1]:.2f} ({quartiles[0]:.2f} to {quartiles[2]:.2f}), above one in {sum(ratio > 1 for ratio in ratios)} of {len(ratios)}",
              flush=True)


main()
