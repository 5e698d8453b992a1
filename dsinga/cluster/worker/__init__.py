"""The runtime of one worker of a worker group: its batches, its partition of the net, its exchange with the servers.

Each partition of the net has one object in a Dask worker's process or, without a cluster, in a thread. It does not
import Dask.
"""
