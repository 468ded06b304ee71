"""`working.py KIND SECONDS`: a program that prints nothing for so long, and works: no hang."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

KIND, SECONDS = sys.argv[1], float(sys.argv[2])
END = time.monotonic() + SECONDS
BURN = f"import time\nend = time.monotonic() + {SECONDS}\nwhile time.monotonic() < end: pass"


def compute():
    while time.monotonic() < END:
        pass


def threads():
    """As a compiler in threads of a library: the main thread only waits."""
    workers = [threading.Thread(target=compute) for _ in range(2)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()


def children():
    """As a compiler that is a program of its own."""
    subprocess.run([sys.executable, "-c", BURN], check=True)


def index():
    """Reads and writes a little at a time, and hardly uses a core."""
    with tempfile.TemporaryFile() as file:
        while time.monotonic() < END:
            file.write(bytes(8192))
            file.flush()
            time.sleep(0.2)


def download():
    """Receives into memory: no file is written, and hardly any core used. A signal would end the receive too early."""
    server = socket.create_server(("127.0.0.1", 0))
    sender = os.fork()
    if not sender:
        peer, _ = server.accept()
        while time.monotonic() < END:
            peer.sendall(bytes(65536))
            time.sleep(0.2)
        os._exit(0)
    data = bytearray(int(SECONDS * 5 * 65536 + 1))
    connection = socket.create_connection(server.getsockname())
    server.close()
    connection.recv_into(data, len(data), socket.MSG_WAITALL)
    assert time.monotonic() >= END, "the receive was cut short"
    os.waitpid(sender, 0)


def closed():
    """Whoever hears nothing of a rank any more still sees it work."""
    os.close(1)
    os.close(2)
    compute()
    os._exit(0)


def closed_asleep():
    os.close(1)
    os.close(2)
    time.sleep(1000)


def reports():
    """Says that it goes on."""
    import algorun

    while time.monotonic() < END:
        algorun.progress()
        time.sleep(0.1)


def shells():
    """A shell script that starts one program after the other."""
    subprocess.run(
        ["sh", "-c", f"end=$(($(date +%s) + {int(SECONDS)})); while [ $(date +%s) -lt $end ]; do sleep 0.2; done"],
        check=True,
    )


def waits_for_rank_0():
    """Rank 0 computes, the others sleep until it has done."""
    if os.environ["RANK"] == "0":
        compute()
        open("done", "w").close()
    while not os.path.exists("done"):
        time.sleep(1.0)


globals()[KIND]()
print("went through", flush=True)
