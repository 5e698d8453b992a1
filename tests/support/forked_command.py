"""Runs ``python -m MODULE ARGUMENT...`` by a :func:`tests.support.command_server.command_server`.

``python -IS forked_command.py ADDRESS MODULE ARGUMENT...`` passes on its arguments, folder, environment and files to
the server at ADDRESS, and ends with the module's status. If the server has another environment, it runs the module
itself.
"""

import json
import os
import signal
import socket
import sys

if __name__ == "__main__":
    address, module, *arguments = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an idle kernel goes on, too
    request = {"module": module, "arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        status = connection.recv(1)
    if not status:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
    sys.exit(status[0])
