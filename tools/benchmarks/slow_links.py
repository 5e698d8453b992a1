"""Links of a rate and a delay between network namespaces, for kernels without netem: this process passes packets on.

``python tools/benchmarks/slow_links.py RATE DELAY NAMESPACE...``, as root: RATE in bits a second, DELAY in seconds, of
each packet one way. Host k of the namespaces gets the address 10.77.0.k at the device eth0, whose queue takes 100 ms.
It runs until it is ended; ``ip -n NAMESPACE link set eth0 down`` cuts a host off. Used by ``hosts.sh`` where DELAY is.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import queue
import struct
import subprocess
import sys
import threading
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI, CLONE_NEWNET = 0x400454CA, 0x0001, 0x1000, 0x40000000
DESTINATION = 19  # the last byte of the destination in the header of IPv4

Delayed = queue.SimpleQueue[tuple[float, bytes]]


def open_device(namespace: str) -> int:
    """Return the file descriptor of a new device eth0 in a namespace, which this thread enters for good."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", b"eth0", IFF_TUN | IFF_NO_PI))
    return device


def send(device: int, rate: float, delay: float, outputs: list[Delayed]) -> None:
    """Read packets at the rate of the link, and put them into the queue of their destination."""
    free = 0.0  # when the link can take the next packet
    while True:
        packet = os.read(device, 1 << 16)
        free = max(free, time.monotonic()) + 8 * len(packet) / rate
        time.sleep(max(0.0, free - time.monotonic()))
        if packet[0] >> 4 == 4 and 1 <= packet[DESTINATION] <= len(outputs):
            outputs[packet[DESTINATION] - 1].put((free + delay, packet))


def receive(device: int, packets: Delayed) -> None:
    """Hand packets over when they have been under way for the delay."""
    while True:
        due, packet = packets.get()
        time.sleep(max(0.0, due - time.monotonic()))
        with contextlib.suppress(OSError):  # of a device that is down
            os.write(device, packet)


def serve(number: int, namespace: str, rate: float, delay: float, outputs: list[Delayed], mtu: int) -> None:
    """Be the link of a host."""
    device = open_device(namespace)
    length = max(20, int(0.1 * rate / 8 / mtu))
    for command in (
        f"addr add 10.77.0.{number}/24 dev eth0", f"link set eth0 mtu {mtu} txqueuelen {length} up", "link set lo up",
    ):  # fmt: skip
        subprocess.run(["ip", "-n", namespace, *command.split()], check=True)
    threading.Thread(target=receive, args=(device, outputs[number - 1]), daemon=True).start()
    send(device, rate, delay, outputs)


def main(rate: float, delay: float, *namespaces: str) -> None:
    """Serve all hosts until the process is ended."""
    mtu = int(min(65000, max(1500, rate / 8 / 1000)))  # a packet takes a millisecond where the rate allows it
    outputs: list[Delayed] = [queue.SimpleQueue() for _ in namespaces]
    for number, namespace in enumerate(namespaces, 1):
        threading.Thread(target=serve, args=(number, namespace, rate, delay, outputs, mtu)).start()


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:])
