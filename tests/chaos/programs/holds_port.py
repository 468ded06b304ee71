"""`holds_port.py ADDRESS PORT`: listens there and says nothing."""

import socket
import sys
import time

listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("held", flush=True)
time.sleep(600)
