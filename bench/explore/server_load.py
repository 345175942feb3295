#!/usr/bin/env python3
"""server_load.py SOCKET COMMAND…: starts a memcached by COMMAND (which tells it
to listen at SOCKET), lets three clients talk to it at the same time, and tells
it to end. For bench/reorder/run and bench/explore/applications. TURNS (default 8):
how often each client asks for its things."""
import os, socket, subprocess, sys, threading, time

path, command = sys.argv[1], sys.argv[2:]
turns = int(os.environ.get("TURNS", "8"))
if os.path.exists(path):
    os.remove(path)
server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def connect():
    for _ in range(600):
        try:
            client = socket.socket(socket.AF_UNIX)
            client.connect(path)
            return client
        except OSError:
            if server.poll() is not None:
                break
            time.sleep(0.05)
    server.kill()
    sys.exit("the server cannot be reached")


def ask(client, text, end):
    client.sendall(text)
    answer = b""
    while not answer.endswith(end):
        more = client.recv(4096)
        if not more:
            break
        answer += more


def talk(number):
    client = connect()
    for turn in range(turns):
        ask(client, b"set k%d 0 0 3\r\nabc\r\n" % turn, b"\r\n")
        ask(client, b"get k%d\r\n" % (turn * number % turns), b"END\r\n")
        ask(client, b"set c 0 0 1\r\n1\r\n", b"\r\n")
        ask(client, b"incr c 1\r\n", b"\r\n")
    ask(client, b"stats\r\n", b"END\r\n")
    client.close()


clients = [threading.Thread(target=talk, args=(number,)) for number in range(1, 4)]
for client in clients:
    client.start()
for client in clients:
    client.join()
connect().sendall(b"shutdown\r\n")
try:
    code = server.wait(60)
except subprocess.TimeoutExpired:
    server.kill()
    sys.exit("the server does not end")
sys.exit(code)
