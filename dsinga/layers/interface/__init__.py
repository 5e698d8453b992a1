"""The interface of layers: the base class, contexts, declarations, regions, and checks at run time."""
