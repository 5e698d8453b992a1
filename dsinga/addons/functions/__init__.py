"""Layers that call a user's function; the library in which the function is written computes the gradient.

docs/howto/own-code.md has examples. The returned array tells the library: JAX, autograd or PyTorch.

- *Rows.* A function computes each record from its own numbers. When a layer is made, its function is called on random
rows between 0.1 and 0.9: it must return floats, rows first, and must not mix rows. The log says whether its gradient
agrees with finite differences. A loss that cuts off all gradients, as by ``detach()``, is refused. ``sample_weight``
weighs the loss of each record. A metric returns one number, or one for each record.
- *Classes* keep the arguments of their constructor in the job as JSON. ``call`` may accept ``training=``.
- *Names.* Jobs and saved models name a function "module:quantile", in a script or notebook "__main__:quantile"; define
  it there before the model is loaded. A lambda gets a name with a digest of its code and values, such as
  ``lambda_3f9a12c07b1e``: ``model.save`` warns, and another process refuses to compute with the model.
  ``@dsinga.register("function", "quantile")`` gives a name.
- *What it reads.* A function may read values that change, such as a factor that a callback lowers.
"""
