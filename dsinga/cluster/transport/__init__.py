"""Sends calls and arrays between workers and servers: directly, through shared memory, or through a network.

It does not import Dask: connections to other hosts are sockets from :mod:`dsinga.cluster.on_workers.connections`.
"""
