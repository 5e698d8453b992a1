"""How a run gets its client: embedded cluster, address of a scheduler, certificates, workers still to come."""
