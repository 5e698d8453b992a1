"""Energy models: restricted Boltzmann machines."""
