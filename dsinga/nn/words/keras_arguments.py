"""Arguments, methods and attributes of Keras that have no counterpart in ``nn``, with what to write instead."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from dsinga.base import arguments
from dsinga.base.arguments import F, T, instead_by_name
from dsinga.base.errors import UserError
from dsinga.job.checks import iterate_messages
from dsinga.job.limits import out_of_range
from dsinga.job.message import Message
from dsinga.nn.words.keras_defaults import without_defaults

_NONE = "there is none"
_LEAVE_OUT = "leave it out"
_DECAY = "give the optimizer weight_decay, and the layer wd_scale"
_SHAPE = "begin with nn.Input(shape=...)"
_NORM_INIT = "scale begins with 1 and bias with 0; give param=[nn.Param(init=...), ...] for others"
_WEIGHTS = "params are those of the model: model.params by name, model.get_weights() in order"
_HERE = "sequences of lengths: put nn.SequenceLength() before, and give it to the layer as its last source"
_PARTS = ("kernel", "bias", "activity", "recurrent", "embeddings", "beta", "gamma", "depthwise", "pointwise")

# By argument, and by "Function.argument" where a name has several meanings.
ARGUMENTS = {
    **instead_by_name(
        {
            _NONE: "dilation_rate lora_rank lora_alpha quantization_config recurrent_dropout return_state "
            "noise_shape max_value threshold invert keepdims optional attention_axes interpolation fill_mode "
            "fill_value backward_layer rms_scaling use_scale return_attention_scores amsgrad",
            _LEAVE_OUT: "unroll implementation use_cudnn time_major zero_output_for_mask fused virtual_batch_size "
            "renorm flash_attention reset_after cudnn_layers supports_masking autocast SGD.name Adam.name "
            "Adamax.name RMSprop.name Adagrad.name Adadelta.name run_eagerly jit_compile steps_per_execution "
            "auto_scale_loss max_queue_size use_multiprocessing line_length positions print_fn expand_nested "
            "show_trainable layer_range overwrite include_optimizer save_format zipped custom_objects safe_mode "
            "evaluate.verbose predict.verbose",
            _SHAPE: "input_shape input_dim input_length batch_input_shape",
            _NORM_INIT: "gamma_initializer beta_initializer moving_mean_initializer moving_variance_initializer",
            _HERE: "ragged mask_zero mask key_mask query_mask value_mask attention_mask",
            "give the sources in order, [query, value] or [query, value, key]": "query key value",
            "write shape=, that of one record; fit has batch_size": "batch_shape Input.batch_size",
        }
    ),
    **{f"{part}_regularizer": _DECAY for part in ("beta", "gamma")},
    **{f"{part}_constraint": "there is none; the optimizer has clip_norm and clip_value" for part in _PARTS},
    "activity_regularizer": _NONE,
    "data_format": 'features of images are channels first; nn.Input(shape, data_format="channels_last") takes records '
    "of the other format",
    "dtype": "params are float32",
    "sparse": "records are dense arrays; codes go to nn.Embedding",
    "tensor": "fit and predict take arrays",
    "weights": "set model.params",
    "dropout": "put nn.Dropout before the layer",
    "unit_forget_bias": "the bias of the forget gate begins with 0; give param=[nn.Param(init=...), ...] for others",
    "go_backwards": "use nn.Bidirectional",
    "stateful": "use carry=True",
    "ConvLSTM2D.stateful": "each record begins with a state of zeros; give records more steps",
    "merge_mode": "the features of both directions are joined",
    "center": "the layer always has a bias",
    "scale": "the layer always has a scale",
    "synchronized": "the statistics are always those of the whole batch over all workers",
    "BatchNormalization.axis": "channels are axis 1",
    "GroupNormalization.axis": "channels are axis 1",
    "Normalization.axis": "give mean_file and std_file for a number for each element",
    "Softmax.axis": "it is over a row, or over a step of sequences",
    "alpha": "use negative_slope",
    "approximate": "nn.GELU is exact",
    "seed": "the job's seed determines all random numbers",
    "training": "fit trains, and predict and evaluate do not",
    "initial_state": "use carry=True, which begins a batch with the last state of the batch before",
    "inputs": "give the sources in their order, as in layer(x)",
    "call of MultiHeadAttention.use_causal_mask": "give it to nn.MultiHeadAttention itself",
    "call of Attention.use_causal_mask": "give it to nn.Attention itself",
    "lr": "use learning_rate",
    "warmup_target": "it is initial_learning_rate; the warm-up begins with warmup_lr",
    "decay": "give learning_rate=nn.InverseTimeDecay(...)",
    **dict.fromkeys(("l1", "l2"), "give layers kernel_regularizer=nn.L1(0.01) or nn.L2(0.01)"),
    "Lion.epsilon": "its steps have no divisor",
    "ema_overwrite_frequency": "tests and the result use the averages; training goes on with the params",
    "global_clipnorm": "use clip_global_norm",
    "initial_accumulator_value": "it is 0",
    "loss_scale_factor": "params are float32, and the loss needs no scale",
    "gradient_accumulation_steps": "give fit so many times the batch_size, and micro_batches= (docs/memory.md)",
    "compile.loss": "the losses of a model of a job are layers of the job",
    "compile.metrics": "the layers of the job report metrics",
    "load_model.compile": "it is trained as before; compile(optimizer) gives it another one",
    "weighted_metrics": "give fit sample_weight=, which weighs the loss",
    "verbose": "it is 0 to show nothing, or 1",
    "shuffle": "training always shuffles the records",
    "class_weight": "only fit has it; give sample_weight=weights[y]",
    "initial_epoch": "a further fit goes on, with the params and the optimizer's state",
    "validation_steps": "use validate_steps",
    "validation_freq": "use validate_freq, a number of steps",
    "validation_batch_size": "it is batch_size",
    "steps": "give as many records as are to be computed",
    "return_dict": "evaluate always returns a dict",
    "callbacks": "only fit has callbacks",
}

_LOOP = "write dsinga.nn.LocalNet(model.job(train_steps=1), x, y) for a loop of your own (docs/own-loop.md)"
_GENERATOR = "fit, evaluate and predict take generators"
_STATIC = "model.params has them by name; layer.trainable says which ones training moves"

STEP_METHODS = set("train_step test_step predict_step compute_loss compute_metrics make_train_function".split())
OWN_STEP = (
    "a step of your own is an algorithm, registered and named by compile(algorithm=) (docs/extending.md), which also "
    "trains on clusters; a loss of your own is a layer; or write dsinga.nn.LocalNet(model.job(train_steps=1), x, y) "
    "for a loop of your own (docs/own-loop.md)"
)

MODEL_ATTRIBUTES = {
    **instead_by_name(
        {
            _LOOP: "stateless_call add_loss",
            OWN_STEP: "train_step test_step compute_loss make_train_function compute_metrics",
            "write model(x)": "call",
            "write model.predict(x)": "predict_step",
            _GENERATOR: "fit_generator evaluate_generator predict_generator",
            "write model.predict(x), or .argmax(axis=1) of it": "predict_classes predict_proba",
            "write str(model), the job file": "to_json to_yaml get_config get_compile_config",
            "write nn.from_job(path)": "from_config compile_from_config build_from_config",
            _STATIC: "weights variables trainable_weights trainable_variables non_trainable_weights "
            "non_trainable_variables",
            "losses report metrics; evaluate returns them": "add_metric reset_metrics metrics_names",
            "carry=True keeps states between the batches of a fit": "reset_states reset_state",
            "model.summary() prints shapes": "input_shape output_shape compute_output_shape",
            "model.summary() prints it": "count_params summary_text",
        }
    ),
    "export": "model.save(folder) writes job.conf and params.safetensors",
    "build": "give nn.Input a shape; without it fit takes the shape of the data",
    "pop": "write nn.Sequential(model.layers[:-1])",
    "loss": "compile takes it; model.objective has it",
    "quantize": "params are float32",
}

LAYER_ATTRIBUTES = {
    **instead_by_name(
        {
            _WEIGHTS: "get_weights set_weights weights variables kernel bias count_params trainable_weights "
            "trainable_variables non_trainable_weights embeddings",
            "x = layer(source) is the feature, with x.shape": "input_shape output_shape",
            "str(model) shows the layer as a job file has it": "get_config from_config build call",
            "layer.settings has the arguments that it was made with": "units filters rate activation",
        }
    ),
    "reset_states": "states are those of one fit",
    "adapt": "give mean= and variance=, as in nn.Normalization(x.mean(), x.var())",
}

check_names = functools.partial(arguments.check_names, instead=ARGUMENTS)


def bind(function: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by name, as :func:`dsinga.base.arguments.bind`, without Keras's that change nothing."""
    return arguments.bind(function, signature, args, without_defaults(function, signature, kwargs), ARGUMENTS)


def checked(function: F) -> F:
    """Return the function with arguments that are checked by name, without Keras's that change nothing."""
    call, signature = arguments.checked(function, instead=ARGUMENTS), inspect.signature(function)

    @functools.wraps(function)
    def call_with(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **without_defaults(function.__name__, signature, kwargs))

    return call_with  # type: ignore[return-value]


def checked_class(cls: type[T]) -> type[T]:
    """Return the class with a constructor whose arguments are checked by name."""
    return arguments.check_settings(cls, instead=ARGUMENTS)


def refuse_subclasses(function: F) -> F:
    """Let a class that names a function as its base raise UserError; return the function."""

    def fail(bases: tuple[Any, ...]) -> NoReturn:
        raise UserError(
            f"nn.{function.__name__} is a function, which no class can inherit; a layer of your own is a subclass of "
            "nn.Layer; updaters and schedules are classes registered by dsinga.register (docs/extending.md)"
        )

    function.__mro_entries__ = fail  # type: ignore[attr-defined]
    return function


# The arguments of optimizers and schedules by the fields of a job that they set, where the names differ.
FIELDS = {"delta": "epsilon", "decay": "ema_momentum", "every": "ema_every"}


def check_fields(function: str, message: Message, names: Mapping[str, str] = FIELDS) -> None:
    """Raise UserError for a number in a message, or one within it, that is out of its range, by the argument's name."""
    for _, inner in iterate_messages(message):
        for field, _, value, allowed in out_of_range(inner):
            raise UserError(f"{function}: {names.get(field, field)} {allowed.fault(value)}")


def extended(
    function: Callable[..., Mapping[str, Any]],
    common: Mapping[str, inspect.Parameter],
    returns: Callable[..., Any],
    finish: Callable[..., Mapping[str, Any]] = dict,
) -> Any:
    """Return a function that takes ``common`` arguments, too, and ``returns`` a message of the fields of both.

    ``function`` returns the fields of its own arguments, ``finish`` those of the common ones.
    """
    signature = arguments.extended_signature(function, common.values(), returns.__name__)

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Any:
        given = bind(function.__name__, signature, args, kwargs)
        shared = {name: given.pop(name) for name in common if name in given}
        message = returns(**function(**given), **finish(**shared))
        check_fields(function.__name__, message, FIELDS | {"base_lr": next(iter(signature.parameters))})
        return message

    make.__signature__ = signature  # type: ignore[attr-defined]
    return refuse_subclasses(make)
