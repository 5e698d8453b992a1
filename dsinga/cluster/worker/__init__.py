"""The runtime of one worker of a worker group: its batches, its partition of the net, its exchange with the servers.

Runs in the processes of Dask workers, with one object for each partition of the net, or in threads of any process
without a cluster. It does not import Dask.
"""
