"""The interface of layers: base class, the context of a pass, declarations, cuts by space, and run-time checks."""
