"""Sends calls and arrays between workers and servers: directly, through shared memory, or through a network.

Runs in every process with workers or servers of a run. It does not import Dask: connections to other hosts are sockets
from :mod:`dsinga.cluster.on_workers.connections`.
"""
