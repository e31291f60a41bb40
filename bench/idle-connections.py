#!/usr/bin/env python3
"""What idle NVMe/TCP connections cost a target: memory per connection, and CPU while nothing happens.

    bench/idle-connections.py PID PORT NQN [CONNECTIONS [SECONDS]]

Opens CONNECTIONS queues to the target on 127.0.0.1 (pairs of an admin and an I/O queue, fully connected and enabled, without
keep-alive), then reads the resident memory and the CPU time of process PID from /proc.
"""
import os
import socket
import struct
import sys
import time

PAGE = os.sysconf("SC_PAGE_SIZE")
TICK = os.sysconf("SC_CLK_TCK")


def resident(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * PAGE


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def receive(sock, length):
    data = b""
    while len(data) < length:
        piece = sock.recv(length - len(data))
        if not piece:
            raise SystemExit("the target closed a connection")
        data += piece
    return data


def command(sock, sqe, data=b""):
    """Sends a capsule and returns the completion's 16 bytes."""
    pdo = 72 if data else 0
    sock.sendall(struct.pack("<BBBBI", 4, 0, 72, pdo, 72 + len(data)) + sqe + data)
    header = receive(sock, 24)
    if header[0] != 5:
        raise SystemExit(f"unexpected PDU type {header[0]}")
    cqe = header[8:]
    status = struct.unpack_from("<H", cqe, 14)[0] >> 1
    if status:
        raise SystemExit(f"command failed: status {status:#x}")
    return cqe


def connect(port, nqn, number, qid, cntlid):
    """One queue: the ICReq exchange and Fabrics Connect."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.sendall(struct.pack("<BBBBIHBBI112x", 0, 0, 128, 0, 128, 0, 0, 0, 0))
    receive(sock, 128)
    host_id = struct.pack("<QQ", 1, number)
    record = struct.pack("<16sH238x256s256s256x", host_id, cntlid, nqn.encode(), f"nqn.2026-11.io.remuda:idle-{number}".encode())
    sgl = struct.pack("<QI3xB", 0, len(record), 1)
    sqe = struct.pack("<BBHB19x", 0x7F, 0x40, 1, 1) + sgl + struct.pack("<HHHBxI12x", 0, qid, 31, 0, 0)
    cqe = command(sock, sqe, record)
    return sock, struct.unpack_from("<H", cqe)[0]


def enable(sock):
    """Property Set of CC: enabled, 64-byte submission and 16-byte completion entries."""
    sgl = struct.pack("<QI3xB", 0, 0, 0x5A)
    sqe = struct.pack("<BBHB19x", 0x7F, 0x40, 2, 0) + sgl + struct.pack("<B3xIQ8x", 0, 0x14, 6 << 16 | 4 << 20 | 1)
    command(sock, sqe)


def main():
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    pid, port, nqn = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    count = int(sys.argv[4]) if len(sys.argv) > 4 else 1000
    seconds = float(sys.argv[5]) if len(sys.argv) > 5 else 10
    before = resident(pid)
    sockets = []
    for number in range(count // 2):
        admin, cntlid = connect(port, nqn, number, 0, 0xFFFF)
        enable(admin)
        io, _ = connect(port, nqn, number, 1, cntlid)
        sockets += [admin, io]
    time.sleep(1)
    after = resident(pid)
    cpu = cpu_seconds(pid)
    time.sleep(seconds)
    cpu = cpu_seconds(pid) - cpu
    print(f"{len(sockets)} connections: {(after - before) / 1024 / len(sockets):.1f} KiB each, "
          f"process {after / 2**20:.1f} MiB resident, {100 * cpu / seconds:.2f} % of one core while idle")


main()
