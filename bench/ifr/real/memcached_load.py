#!/usr/bin/env python3
"""memcached_load.py PROGRAM [BATCHES]: starts memcached with four threads on a
socket of its own, loads it from eight connections, checks every answer, and
ends it with SIGTERM. The server's standard error goes to ours."""
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

BATCH = 40
folder = tempfile.mkdtemp()
path = os.path.join(folder, "socket")
batches = int(sys.argv[2]) if len(sys.argv) > 2 else 240
server = subprocess.Popen(
    [sys.argv[1], "-u", "root", "-s", path, "-a", "0777", "-t", "4", "-m", "32"])


def connect():
    for _ in range(1200):
        try:
            line = socket.socket(socket.AF_UNIX)
            line.connect(path)
            return line
        except OSError:
            line.close()
            if server.poll() is not None:
                sys.exit(f"memcached ended by itself with {server.returncode}")
            time.sleep(0.05)
    sys.exit("memcached does not listen")


wrong = []


def client(number):
    stream = connect().makefile("rwb")
    for batch in range(batches):
        asked, wanted = [], []
        for step in range(BATCH):
            key = f"key{number}-{step}"
            value = f"value {number} {batch} {step} " + "x" * (step * 5)
            asked.append(f"set {key} 0 0 {len(value)}\r\n{value}\r\nget {key}\r\nincr hits 1\r\n")
            wanted += ["STORED", f"VALUE {key} 0 {len(value)}", value, "END", None]
        stream.write("".join(asked).encode())
        stream.flush()
        for want in wanted:
            got = stream.readline().decode().rstrip("\r\n")
            if got != want and not (want is None and got.isdigit()):
                wrong.append((want, got))
                return


first = connect()
first.sendall(b"set hits 0 0 1\r\n0\r\n")
if first.recv(100) != b"STORED\r\n":
    wrong.append("the first answer")
threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
first.sendall(b"get hits\r\n")
answer = first.recv(100)
# What the server took, and its largest size, for the measurements: before it
# ends, when whoever names the races is a child of it.
fields = open(f"/proc/{server.pid}/stat").read().rsplit(")", 1)[1].split()
seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
size = next(line.split()[1] for line in open(f"/proc/{server.pid}/status") if line.startswith("VmHWM"))
server.send_signal(signal.SIGTERM)
server.wait()
print(f"server {seconds:.2f} {size}")
if wrong or str(8 * batches * BATCH).encode() not in answer:
    sys.exit(f"wrong answers: {wrong[:3]} {answer!r}")
