"""The runtime of one worker of a group, without Dask: its batches, part of the net, and exchange with servers."""
