"""The workers and servers of runs in the processes of a cluster: where they are, and how one is killed."""

import os
import signal

from distributed import Client

from dsinga.cluster.on_workers.worker_actor import WORKERS
from dsinga.cluster.transport.endpoints import endpoint_names


def names_here() -> list[str]:
    """Return the names of the workers and servers in this process: run, generation, group and number."""
    workers = {key.name for key in WORKERS}
    return [name for name in endpoint_names() if name in workers or "-worker-" not in name]


def kill_member(client: Client, victim: str) -> None:
    """Kill the process that has a worker, such as "1-worker-0" of group 1, or a server, such as "1-0"."""
    places = client.run(names_here)
    (address,) = [
        address for address, names in places.items() if any(name.split("-", 2)[2] == victim for name in names)
    ]
    os.kill(client.run(os.getpid)[address], signal.SIGKILL)
