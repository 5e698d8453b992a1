"""How calls and arrays travel between two ends of a run: directly, through shared memory, or by Dask Actors.

Runs in every process that holds workers or servers of a run. It knows no Dask: an Actor is any object with the method
that the other end calls.
"""
