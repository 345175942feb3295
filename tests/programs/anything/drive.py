"""drive.py KEYS... -- COMMAND: runs COMMAND on a terminal of its own and types
each KEYS (with Python escapes) once the screen has been quiet for a while.
Prints nothing that depends on the screen; ends like the command."""
import os, pty, select, struct, sys, termios, fcntl, time

at = sys.argv.index('--')
keys = [k.encode().decode('unicode_escape').encode('latin1') for k in sys.argv[1:at]]
pid, fd = pty.fork()
if pid == 0:
    os.execvp(sys.argv[at + 1], sys.argv[at + 1:])
fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 80, 0, 0))
seen = False
quiet_since = time.time()
limit = time.time() + 120
screen = open('screen', 'wb')
while time.time() < limit:
    ready, _, _ = select.select([fd], [], [], 0.1)
    if ready:
        try:
            data = os.read(fd, 65536)
        except OSError:
            break
        if not data:
            break
        screen.write(data); screen.flush()
        seen = True
        quiet_since = time.time()
    elif keys and seen and time.time() - quiet_since > 0.7:
        os.write(fd, keys.pop(0))
        quiet_since = time.time()
_, status = os.waitpid(pid, 0)
sys.exit(os.waitstatus_to_exitcode(status) & 255)
