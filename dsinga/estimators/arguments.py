"""Names of arguments of scikit-learn's and skorch's nets, with what to write instead."""

from __future__ import annotations

from dsinga.base.arguments import check_settings

INSTEAD = {
    "hidden_layer_sizes": "it is hidden",
    **dict.fromkeys(("max_iter", "max_epochs", "n_epochs", "n_iter", "nb_epoch"), "it is epochs"),
    "batch_size": "it is batchsize",
    **dict.fromkeys(("learning_rate_init", "lr", "eta0"), "it is learning_rate"),
    **dict.fromkeys(("alpha", "l2"), "it is weight_decay, which is decoupled from gradients"),
    **dict.fromkeys(("seed", "random_seed"), "it is random_state"),
    **dict.fromkeys(
        ("module", "model", "estimator"), "it is net, a model of dsinga.nn; of PyTorch by dsinga.convert.from_torch"
    ),
    **dict.fromkeys(
        ("solver", "optimizer", "criterion", "momentum", "callbacks", "early_stopping", "n_iter_no_change", "tol"),
        "give net= a model of dsinga.nn, which is compiled with optimizer and loss; nn's fit takes callbacks",
    ),
    "validation_fraction": "give fit validation_data=(X, y)",
    "n_jobs": "it is workers",
    "device": "give a job gpu (docs/gpu.md)",
    "verbose": "leave it out; history_ has what training reports",
}


def check_arguments(cls: type) -> type:
    """Let the constructor of an estimator raise UserError for an unknown argument, with what to write instead."""
    return check_settings(cls, instead=INSTEAD)
